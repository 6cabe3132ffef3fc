"""Find the tables that decide on a model's reuse: its reuse profiles, or the operator's.

A model without a profile reuses nothing: similarities and thresholds of one encoder and model do not hold for others.
An operator who gives tables accepts that. Where reuse is earned (`earned_reuse`), such a model begins with a published
prior of its encoder, or with closed rows, and a profile's rows may widen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

from pentimento.domain.online_quality import ComparedHit, ThresholdPosition, WatchedThreshold
from pentimento.policies.cache_selection import (
    NIRVANA_LATENT_THRESHOLDS,
    SelectionRules,
    Threshold,
    Thresholds,
    skipped_steps,
)
from pentimento.policies.earned_reuse import CLOSED, TrialRow, cells_of, explored_from, next_row
from pentimento.policies.published_reuse import MODM_IMAGE_STEPS, prior_of, rejected_priors
from pentimento.profiles.catalogue import ProfileSet
from pentimento.profiles.document import Profile, ProfileKind, ReuseKind
from pentimento.profiles.kinds import RETRIEVAL_BIAS, biased, profile_name, reuses_images, thresholds
from pentimento.profiles.rules import ThresholdRule

UNPROFILED = "thresholds that are not profiled"
NO_PROFILE = "no selector profile of this model"
NO_PAIR = "no selector profile of this model for the model that generates misses"
UNEARNED = "reuse that is not earned yet"
# Every K that the papers' tables have, none allowed.
CLOSED_ROWS: Mapping[ReuseKind, Thresholds] = {
    ReuseKind.LATENTS: tuple(Threshold(CLOSED, row.saved_share) for row in NIRVANA_LATENT_THRESHOLDS),
    ReuseKind.IMAGES: tuple(Threshold(CLOSED, step / 50) for step in MODM_IMAGE_STEPS),
}


@dataclass(frozen=True)
class ReuseTable:
    """Hold a table, the share of the from-scratch quality that it promises (0 for none), and its source. The promise
    is by `rule`, against `reference_model_digest` from scratch; empty for the model itself. `earned`: trials may open
    and widen its rows."""

    thresholds: Thresholds
    alpha: float
    source: str
    rule: ThresholdRule = ThresholdRule.LOWER_BOUND
    reference_model_digest: str = ""
    earned: bool = False

    def keeps(self, quality: float | None) -> bool:
        """Return whether the table promises the requested quality; None requests no particular one."""
        return quality is None or quality <= self.alpha


@dataclass(frozen=True)
class ModelReuse:
    """Hold a model's reuse tables; `base` holds the other rules. `trials`: the rows under test, that of fewest samples
    first."""

    latents: ReuseTable
    images: ReuseTable
    base: SelectionRules
    trials: tuple[TrialRow, ...] = ()

    def rules(self, quality: float | None = None) -> SelectionRules:
        """Return the rules for a request of a share of the from-scratch quality: without the tables that promise less,
        unless none promises enough, so that a miss can name the shortfall."""
        kept = [table for table in (self.latents, self.images) if table.thresholds and table.keeps(quality)]
        offered = kept or [table for table in (self.latents, self.images) if table.thresholds]
        return replace(
            self.base,
            latents=self.latents.thresholds if self.latents in offered else (),
            images=self.images.thresholds if self.images in offered else (),
            quality=max((table.alpha for table in offered), default=self.base.quality),
        )


class ReuseSource(Protocol):
    """Provide the reuse tables of models."""

    def of(
        self,
        model_digest: str,
        encoder_digest: str | None,
        reference_digest: str = "",
        image_encoder_digest: str | None = None,
    ) -> ModelReuse:
        """Return what a model may reuse under an encoder; None for one that is not known yet. Images have the table of
        `image_encoder_digest`; None: of the same encoder.

        Of images it is the table of the pair with the model of `reference_digest`; empty for an unknown one.
        """

    @property
    def reuses_anything(self) -> bool:
        """Return whether any table allows anything."""


@dataclass(frozen=True)
class ReuseRules:
    """Hold the reuse rules of a gateway. `base` has the operator's tables, which override every profile of their kind.
    `rule`: None for each profile's own; of several profiles of a model one for this rule is used. `bias` moves every K
    of every table by that many tenths of the steps (NIRVANA, section 5.3.1): a table with larger K promises no quality,
    and from RETRIEVAL_BIAS on hits are stored images, unchanged. `earns`: reuse is earned by models without a table of
    the operator, and beyond profiles of the lower bound; that of images against a known model."""

    base: SelectionRules
    profiles: ProfileSet = field(default_factory=ProfileSet)
    rule: ThresholdRule | None = None
    bias: int = 0
    earns: bool = False

    def of(
        self,
        model_digest: str,
        encoder_digest: str | None,
        reference_digest: str = "",
        image_encoder_digest: str | None = None,
    ) -> ModelReuse:
        """Return what a model may reuse under an encoder; None for one that is not known yet. Images have the table of
        `image_encoder_digest`; None: of the same encoder.

        Images of another model have the table of that pair (MoDM, section 5.2). A model that generates its own misses,
        or misses of an unknown model, uses the most cautious table of all its pairs.
        """
        of_images = image_encoder_digest or encoder_digest
        pair = "" if reference_digest == model_digest else reference_digest
        latents = self.profiles.reuse(ReuseKind.LATENTS, model_digest, encoder_digest, None, self.rule)
        images = self.profiles.reuse(ReuseKind.IMAGES, model_digest, of_images, pair or None, self.rule)
        own = self._table(images, self.base.images)
        if own.source == NO_PROFILE and self.references(model_digest, of_images):
            own = replace(own, source=NO_PAIR)
        found = self._table(latents, self.base.latents)
        return ModelReuse(
            self._earned(found, ReuseKind.LATENTS, encoder_digest, model_digest),
            self._earned(own, ReuseKind.IMAGES, of_images, reference_digest),
            replace(self.base, retrieves=self._retrieves),
        )

    def _earned(
        self, table: ReuseTable, kind: ReuseKind, encoder_digest: str | None, reference_digest: str
    ) -> ReuseTable:
        """Return a table with the rows that a model begins with where reuse is earned, against the model that trials
        are compared with; empty for an unknown one."""
        if not self.earns or self.bias or table.source == UNPROFILED or not reference_digest:
            return table
        if table.thresholds:
            is_compared = table.reference_model_digest in ("", reference_digest)
            return replace(table, earned=is_compared and table.rule is ThresholdRule.LOWER_BOUND)
        if table.source not in (NO_PROFILE, NO_PAIR):
            return table
        prior = prior_of(kind, encoder_digest)
        if prior is not None:
            begun = (prior.thresholds, prior.alpha, prior.name)
        else:
            begun = (CLOSED_ROWS[kind], table.alpha, f"{UNEARNED}; {rejected_priors(kind)}")
        return ReuseTable(*begun, reference_model_digest=reference_digest, earned=True)

    def references(self, model_digest: str, encoder_digest: str | None) -> tuple[str, ...]:
        """Return the digests of the large models that the model's image profiles compare with."""
        found = (
            profile.of.reference_digest
            for profile in self.profiles.of(ProfileKind.REUSE)
            if reuses_images(profile) and profile.of.model_digest == model_digest
            if encoder_digest in (None, profile.of.encoder_digest)
        )
        return tuple(dict.fromkeys(found))

    @property
    def _retrieves(self) -> bool:
        return self.bias >= RETRIEVAL_BIAS

    def keeping(self, model_digest: str, encoder_digest: str | None) -> SelectionRules:
        """Return the rules for storing a model's images: latents at the K of its own table, and images if any model may
        reuse images, since models can refine images of others."""
        own = self.of(model_digest, encoder_digest)
        earned = CLOSED_ROWS[ReuseKind.IMAGES] if self.earns and not self.bias else ()
        images = self._images_of_any() or earned or (own.latents.thresholds if self._retrieves else ())
        return replace(self.base, latents=own.latents.thresholds, images=images)

    def _images_of_any(self) -> Thresholds:
        profiles = self.profiles.of(ProfileKind.REUSE)
        found = (thresholds(profile, self.rule) for profile in profiles if reuses_images(profile))
        return next((table for table in (self.base.images, *found) if table), ())

    @property
    def reuses_anything(self) -> bool:
        """Return whether any table allows anything."""
        tables = (thresholds(profile, self.rule) for profile in self.profiles.of(ProfileKind.REUSE))
        return self.earns or bool(self.base.latents or self.base.images) or any(tables)

    def _table(self, profile: Profile | None, given: Thresholds) -> ReuseTable:
        if given:
            table = ReuseTable(given, self.base.quality, UNPROFILED)
        elif profile is None:
            return ReuseTable((), self.base.quality, NO_PROFILE)
        else:
            promise = (profile.asked.alpha, profile_name(profile, self.rule), self.rule or profile.asked.rule)
            table = ReuseTable(thresholds(profile, self.rule), *promise, profile.of.reference_digest)
        if not self.bias:
            return table
        moved = table.thresholds if self._retrieves else biased(table.thresholds, self.bias)
        alpha = table.alpha if self.bias < 0 else 0.0
        return replace(table, thresholds=moved, alpha=alpha, source=f"{table.source}, cache bias {self.bias:+}")


_MILLION = 1_000_000
RAISED = "raised by what hits kept"
EARNED = "as trials allow"

Positions = Mapping[WatchedThreshold, ThresholdPosition]


@dataclass(frozen=True)
class FollowedRow:
    """Pair a row of a table with the identity under which its hits are watched."""

    watched: WatchedThreshold
    threshold: Threshold
    table: ReuseTable


def followed_rows(
    reuse: ModelReuse, model_digest: str, encoder_digest: str, image_encoder_digest: str | None = None
) -> tuple[FollowedRow, ...]:
    """Return the rows of a model's own tables, latents first; `image_encoder_digest` None: images have the same
    encoder."""
    kinds = (
        (reuse.latents, False, encoder_digest),
        (reuse.images, True, image_encoder_digest or encoder_digest),
    )
    return tuple(
        FollowedRow(_watched(table, row, from_image, model_digest, encoder), row, table)
        for table, from_image, encoder in kinds
        for row in table.thresholds
    )


def row_of(rows: tuple[FollowedRow, ...], seen: ComparedHit) -> FollowedRow | None:
    """Return the row that allowed a hit to skip its steps; None if no table has it any longer."""
    fitting = (
        row
        for row in rows
        if row.watched.from_image == seen.from_image
        and row.watched.reference_model_digest == seen.reference_model_digest
        and skipped_steps(row.threshold, seen.step_count) == seen.skipped_steps
    )
    return next(fitting, None)


def in_force(
    reuse: ModelReuse,
    model_digest: str,
    encoder_digest: str,
    positions: Positions,
    image_encoder_digest: str | None = None,
) -> ModelReuse:
    """Return the tables with every threshold moved to where its hits put it, never below its own. Images have the same
    encoder unless `image_encoder_digest` names another.

    A row requires no more similarity than a row that skips more steps and has compared hits. Otherwise no hit would use
    it, so none could show an improvement, while the other row is the stricter test of the same similarities and moves
    by its own hits. A row without compared hits requires no less than rows that skip fewer steps: if they skip too
    many, so does it.
    """

    def followed(table: ReuseTable, from_image: bool) -> ReuseTable:
        rows = sorted(table.thresholds, key=lambda row: row.saved_share)
        encoder = (image_encoder_digest if from_image else None) or encoder_digest
        seen = [positions.get(_watched(table, row, from_image, model_digest, encoder)) for row in rows]
        return _renewed(table, _earned_rows(rows, seen) if table.earned else _in_order(rows, seen))

    return replace(reuse, latents=followed(reuse.latents, False), images=followed(reuse.images, True))


def _in_order(rows: Sequence[Threshold], seen: Sequence[ThresholdPosition | None]) -> Thresholds:
    """Return the rows in force. `rows` ascend by skipped steps; `seen` None: the row has no compared hits."""
    highest, allowed = 1.0, list[float]()
    for row, position in zip(reversed(rows), reversed(seen), strict=True):
        if position is None:
            allowed.append(row.min_similarity)
            continue
        highest = max(row.min_similarity, min(highest, position.similarity))
        allowed.append(highest)
    lowest = accumulate(reversed(allowed), max)
    return tuple(Threshold(similarity, row.saved_share) for similarity, row in zip(lowest, rows, strict=True))


def _earned_rows(rows: Sequence[Threshold], seen: Sequence[ThresholdPosition | None]) -> Thresholds:
    """Return the rows of an earned table in force, closed ones included; arguments as for `_in_order`. What a row has
    earned, rows that skip fewer steps have too."""
    said = (
        row.min_similarity if position is None or position.similarity < 0.0 else position.similarity
        for row, position in zip(reversed(rows), reversed(seen), strict=True)
    )
    lowest = reversed(list(accumulate(said, min)))
    return tuple(Threshold(similarity, row.saved_share) for similarity, row in zip(lowest, rows, strict=True))


def opened(reuse: ModelReuse, counts: Mapping[tuple[bool, float], int]) -> ModelReuse:
    """Return tables in force without their closed rows, and with the rows under test. `counts`: the samples since a
    row last moved, by whether it allows images, and its share of skipped steps."""
    tables = {False: reuse.latents, True: reuse.images}
    tested = (_tested(table, from_image, counts) for from_image, table in tables.items() if table.earned)
    trials = sorted((row for row in tested if row is not None), key=lambda row: row.sample_count)
    return replace(reuse, latents=_open_rows(reuse.latents), images=_open_rows(reuse.images), trials=tuple(trials))


def _tested(table: ReuseTable, from_image: bool, counts: Mapping[tuple[bool, float], int]) -> TrialRow | None:
    found = next_row((row, counts.get((from_image, row.saved_share), 0)) for row in table.thresholds)
    if found is None:
        return None
    row, sample_count = found
    lowest = explored_from(row.min_similarity, cells_of(from_image=from_image))
    return TrialRow(from_image, Threshold(lowest, row.saved_share), sample_count)


def _open_rows(table: ReuseTable) -> ReuseTable:
    if not table.earned:
        return table
    return replace(table, thresholds=tuple(row for row in table.thresholds if row.min_similarity < CLOSED))


def _renewed(table: ReuseTable, rows: Thresholds) -> ReuseTable:
    own = {row.saved_share: row.min_similarity for row in table.thresholds}
    if all(row.min_similarity == own[row.saved_share] for row in rows):
        return table
    is_wider = any(row.min_similarity < own[row.saved_share] for row in rows)
    return replace(table, thresholds=rows, source=f"{table.source}, {EARNED if is_wider else RAISED}")


def _watched(
    table: ReuseTable, row: Threshold, from_image: bool, model_digest: str, encoder_digest: str
) -> WatchedThreshold:
    reference = table.reference_model_digest or model_digest
    return WatchedThreshold(encoder_digest, model_digest, reference, from_image, round(row.saved_share * _MILLION))
