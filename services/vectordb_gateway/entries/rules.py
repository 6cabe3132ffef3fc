"""The rules of reuse in force: settings, the plan, and thresholds that follow measured quality."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan
from pentimento.domain.online_quality import (
    ComparedHit,
    EarnedCells,
    QualitySample,
    ReuseQuality,
    ThresholdPosition,
    WatchedThreshold,
)
from pentimento.policies.earned_reuse import CLOSED, MOST_SAMPLES, cells_of, earned
from pentimento.policies.followed_cache import CacheChoice, cache_in_force
from pentimento.policies.online_quality import achieved_quality, followed
from pentimento.policies.plan_checks import check_plan
from pentimento.policies.reuse_rules import (
    FollowedRow,
    ModelReuse,
    Positions,
    ReuseRules,
    followed_rows,
    in_force,
    opened,
    row_of,
)
from pentimento.stores.ledger.cache.ledger import CacheLedger
from services.vectordb_gateway import metrics
from services.vectordb_gateway.entries.checks import check_compared_hit
from services.vectordb_gateway.lookup.encoder import EncoderGuard

logger = logging.getLogger(__name__)

# Samples of each threshold. Older ones say little of the requests of now.
KEPT_SAMPLE_COUNT = 400


class PlannedCache:
    """Hold `in_force`, the choices that the cache follows, and `rules`, the tables of models with its bias. `own`: the
    choices of the operator, which stand over every plan. Plans are taken on the event loop; any thread may read."""

    def __init__(self, own: CacheChoice, rules: ReuseRules) -> None:
        self._own = own
        self.in_force = cache_in_force(own, None)
        self.rules = replace(rules, bias=self.in_force.bias)

    def take(self, plan: Plan) -> None:
        """Go by that plan from now on. One that makes no sense changes nothing, and the log says why."""
        try:
            check_plan(plan)
        except InvalidArgument as error:
            metrics.PLANS.labels("refused").inc()
            logger.error("an invalid plan is not followed: %s", error)
            return
        before, now = self.in_force, cache_in_force(self._own, plan)
        self.in_force, self.rules = now, replace(self.rules, bias=now.bias)
        metrics.PLANS.labels("followed").inc()
        if replace(now, told="", plan=None) != replace(before, told="", plan=None):
            chosen = {"alpha": now.alpha, "bias": now.bias, "eviction": now.eviction}
            kept = {"admits": now.admits, "admits_light": now.admits_light}
            logger.info("the cache follows a plan", extra={"sequence": plan.version.sequence, **chosen, **kept})


@dataclass(frozen=True)
class _InForce:
    """The positions of thresholds, the samples since each moved, and the tables that follow from them, made on demand:
    the tables they were made from, those with closed rows, and those without."""

    positions: Positions = field(default_factory=dict)
    counts: Mapping[WatchedThreshold, int] = field(default_factory=dict)
    tables: dict[tuple[str, str | None, str, str | None], tuple[ModelReuse, ModelReuse, ModelReuse]] = field(
        default_factory=dict
    )


class QualityWatch:
    """Gives the reuse that models allow: the tables of `planned`, moved by the measured quality of hits, which the
    ledger keeps."""

    def __init__(self, ledger: CacheLedger, guard: EncoderGuard, planned: PlannedCache) -> None:
        self._ledger = ledger
        self._guard = guard
        self._planned = planned
        self._now = _InForce()
        # The positions and tables that the metrics show, and the shown thresholds of each model.
        self._shown_by: tuple[Positions, dict[str, tuple[FollowedRow, ...]]] = ({}, {})
        self._shown: dict[str, set[metrics.ThresholdKey]] = {}
        self._showing = threading.Lock()

    @property
    def reuses_anything(self) -> bool:
        """Return whether any table allows anything."""
        return self._planned.rules.reuses_anything

    def of(
        self,
        model_digest: str,
        encoder_digest: str | None,
        reference_digest: str = "",
        image_encoder_digest: str | None = None,
    ) -> ModelReuse:
        """Return what a model may reuse by the thresholds in force."""
        return self._tables(model_digest, encoder_digest, reference_digest, image_encoder_digest)[2]

    def _tables(
        self, model_digest: str, encoder_digest: str | None, reference_digest: str, image_encoder_digest: str | None
    ) -> tuple[ModelReuse, ModelReuse, ModelReuse]:
        """Return a model's own tables, those in force, and those without their closed rows."""
        asked = (model_digest, encoder_digest, reference_digest, image_encoder_digest)
        now, reuse = self._now, self._planned.rules.of(*asked)
        if encoder_digest is None:
            return reuse, reuse, replace(opened(reuse, {}), trials=())
        known = now.tables.get(asked)
        # A plan may have moved the tables themselves meanwhile.
        if known is None or known[0] != reuse:
            found = in_force(reuse, model_digest, encoder_digest, now.positions, image_encoder_digest)
            rows = followed_rows(reuse, model_digest, encoder_digest, image_encoder_digest)
            counts = {
                (row.watched.from_image, row.threshold.saved_share): now.counts.get(row.watched, 0) for row in rows
            }
            known = now.tables[asked] = (reuse, found, opened(found, counts))
        return known

    def refresh(self) -> None:
        """Go by what the ledger knows now, other gateways' samples included. Blocks; raises StoreUnavailable."""
        positions, counts = self._ledger.quality_positions(), self._ledger.quality_counts()
        if (positions, counts) != (self._now.positions, self._now.counts):
            self._now = _InForce(positions, counts)
        # A plan may have moved the tables themselves meanwhile.
        models = sorted({watched.model_digest for watched in positions})
        shown_by = (positions, {one: self._rows(one) for one in models})
        if shown_by != self._shown_by:
            for model_digest in models:
                self._show(model_digest)
            self._shown_by = shown_by

    async def report(self, seen: ComparedHit) -> bool:
        """Count a hit that was generated again, and move its threshold if that calls for it. Return whether it counts:
        a hit counts once, and while a table has its threshold. Raises InvalidArgument, StoreUnavailable."""
        check_compared_hit(seen)
        self._guard.check_encoder(seen.encoder_digest, Space.IMAGE if seen.from_image else Space.TEXT)
        row = row_of(self._rows_of_pair(seen.model_digest, seen.reference_model_digest), seen)
        if row is None:
            metrics.QUALITY_SAMPLES.labels("unmatched").inc()
            return False
        follow = partial(_position_after, row, self._standing(row))
        kept_count = MOST_SAMPLES if row.table.earned else KEPT_SAMPLE_COUNT
        position = await asyncio.wrap_future(self._ledger.note_quality(row.watched, seen, follow, kept_count))
        metrics.QUALITY_SAMPLES.labels("repeated" if position is None else "counted").inc()
        if position is not None:
            # On the event loop, so in the ledger's order.
            self._take(row, position)
            # All of the model's: a threshold that moves takes others with it.
            await asyncio.to_thread(self._show, row.watched.model_digest)
        return position is not None

    async def qualities(self, model_digest: str) -> tuple[ReuseQuality, ...]:
        """Return the thresholds of a model, and what hits by them kept; none while the cache knows no encoder."""
        return await asyncio.to_thread(self._qualities, model_digest)

    def earned_cells(self) -> EarnedCells:
        """Return how much of their reuse all models with compared images have earned."""
        models = sorted({watched.model_digest for watched in self._now.positions})
        rows = [row for model in models for row in self._rows(model) if row.table.earned]
        standing = [self._standing(row) for row in rows]
        trial_count = sum(self._now.counts.get(row.watched, 0) for row in rows)
        return EarnedCells(len(rows), sum(one is not None and one < CLOSED for one in standing), trial_count)

    def _standing(self, row: FollowedRow) -> float | None:
        """Return the similarity of a row in force, CLOSED for a closed one; None if a plan has removed it meanwhile."""
        watched, (text, image) = row.watched, self._encoders()
        found = self._tables(watched.model_digest, text, watched.reference_model_digest, image)[1]
        table, share = found.images if watched.from_image else found.latents, row.threshold.saved_share
        return next((each.min_similarity for each in table.thresholds if each.saved_share == share), None)

    def _take(self, row: FollowedRow, position: ThresholdPosition) -> None:
        before, count = self._now.positions.get(row.watched, ThresholdPosition()), self._now.counts.get(row.watched, 0)
        if position != before:
            fields = {"model_digest": row.watched.model_digest, "saved_share": row.threshold.saved_share}
            logger.warning("a threshold of reuse moved", extra={**fields, "similarity": position.similarity})
        count = count + 1 if position.moved_at_number == before.moved_at_number else 0
        counts = {**self._now.counts, row.watched: count}
        self._now = _InForce({**self._now.positions, row.watched: position}, counts)

    def _show(self, model_digest: str) -> None:
        """Publish the thresholds that the model has now, and withdraw the former ones."""
        with self._showing:
            now = {metrics.publish_quality(model_digest, quality) for quality in self._qualities(model_digest)}
            for gone in self._shown.get(model_digest, set()).difference(now):
                metrics.withdraw_quality(gone)
            self._shown[model_digest] = now

    def _encoders(self) -> tuple[str | None, str | None]:
        """Return the cache's encoders of texts and of images."""
        return self._guard.digest(), self._guard.digest(Space.IMAGE)

    def _rows(self, model_digest: str) -> tuple[FollowedRow, ...]:
        """Return the rows of latents, then those of the images of each pair that is profiled or was compared; none
        while the cache knows no encoder."""
        compared = (
            watched.reference_model_digest
            for watched in self._now.positions
            if watched.from_image and watched.model_digest == model_digest
        )
        profiled = self._planned.rules.references(model_digest, self._guard.digest(Space.IMAGE))
        pairs = dict.fromkeys((*profiled, *compared, model_digest))
        rows = (row for pair in pairs for row in self._rows_of_pair(model_digest, pair))
        # The latents are in the tables of every pair.
        return tuple({row.watched: row for row in rows}.values())

    def _rows_of_pair(self, model_digest: str, reference_digest: str) -> tuple[FollowedRow, ...]:
        text, image = self._encoders()
        if text is None:
            return ()
        table = self._planned.rules.of(model_digest, text, reference_digest, image)
        return followed_rows(table, model_digest, text, image)

    def _qualities(self, model_digest: str) -> tuple[ReuseQuality, ...]:
        found = (self._quality(row) for row in self._rows(model_digest))
        return tuple(quality for quality in found if quality is not None)

    def _quality(self, row: FollowedRow) -> ReuseQuality | None:
        """Return the figures of a threshold; None if a plan has removed its row meanwhile."""
        watched, similarity, (text, image) = row.watched, self._standing(row), self._encoders()
        if similarity is None:
            return None
        now = self.of(watched.model_digest, text, watched.reference_model_digest, image)
        table = now.images if watched.from_image else now.latents
        samples = self._ledger.quality_samples(row.watched)[-KEPT_SAMPLE_COUNT:]
        return ReuseQuality(
            from_image=row.watched.from_image,
            saved_share=row.threshold.saved_share,
            profiled_similarity=row.threshold.min_similarity,
            similarity=similarity,
            asked_alpha=row.table.alpha,
            source=table.source,
            reference_model_digest=row.watched.reference_model_digest,
            achieved=achieved_quality(samples, similarity, row.table.alpha),
            earned=row.table.earned,
            trial_count=self._now.counts.get(watched, 0) if row.table.earned else 0,
        )


def _position_after(
    row: FollowedRow, standing: float | None, samples: Sequence[QualitySample], position: ThresholdPosition
) -> ThresholdPosition:
    if row.table.earned and standing is not None:
        cells = cells_of(from_image=row.watched.from_image)
        return earned(samples, position, row.threshold.min_similarity, standing, row.table.alpha, cells)
    return followed(samples, position, row.threshold.min_similarity, row.table.alpha, row.table.rule)
