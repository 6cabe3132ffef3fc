"""Measure how fast a model without a profile earns its reuse, what its hits keep on the way, and what trials cost.

    python -m benchmarks.earned_reuse [--histories 8] [--requests 12000]

Virtual time over recorded images. Requests are drawn from the similarities of a scene log (`zoo.scene_log`: each
prompt and its nearest earlier one). A start, a trial and a comparison are decided by the gateway's own code over a real
ledger (`QualityWatch`, `select_start`, `trial_start`), sampled and paid for by the frontdoor's (`is_sampled`,
`ShadowBudget`), with the shipped settings. The outcome of a start is that of a recorded pair of real images of
`tiny-heavy` with about this similarity (`benchmarks.earned_pairs`). Device seconds are counted as denoising steps.

Images are earned by the same code, over pairs of a prompt and its nearest earlier image, which `tiny-heavy` refines.

A history of latents ends once every threshold is within `NEAR` of that of the shipped profile, which the gateway does
not have. Quality is checked every `CHECK_EVERY` requests over all images that clients received; an image from noise
keeps all.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.earned_pairs import ENCODER, IMAGE_PAIRS, MODEL, PAIRS, STEPS, MeasuredPair, read_pairs
from benchmarks.selector_profile import PROFILES
from lab.runs.measure import Figure, at_least, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.embedding import Space
from pentimento.domain.online_quality import ComparedHit
from pentimento.policies.cache_selection import (
    RENOISED_SHARE,
    RETAKEN_SHARE,
    NearestEntry,
    SelectionContext,
    SelectionRules,
    Thresholds,
    UseImage,
    UseLatent,
    select_start,
)
from pentimento.policies.earned_reuse import CLOSED, trial_start
from pentimento.policies.followed_cache import CacheChoice
from pentimento.policies.reuse_rules import ModelReuse, ReuseRules
from pentimento.policies.shadow_painting import ShadowBudget, is_sampled
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ReuseKind
from pentimento.profiles.kinds import thresholds
from pentimento.profiles.rules import ThresholdRule
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from services.vectordb_gateway.entries.rules import PlannedCache, QualityWatch
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, reuse, write_scene_log

STEP_COUNT, KEPT_STEPS = 50, (5, 10, 15, 20, 25)
WORK_SHARE, TRIAL_SHARE, SAMPLE_SHARE, MOST_WAITING = 0.05, 0.25, 0.02, 64
ALPHA, NEAR, CHECK_EVERY, LOG_SEED, LOG_COUNT = 0.9, 0.02, 250, 32, 1500
# Recorded pairs of the nearest similarities; one is drawn.
NEIGHBOURS = 20


class KnownEncoder(EncoderGuard):
    """Stand for a cache that is bound to the recorded encoder, without an index."""

    def __init__(self, digest: str = ENCODER) -> None:
        self._digest = digest

    def digest(self, space: Space = Space.TEXT) -> str | None:
        """Return the encoder's digest, or its name in place of it."""
        return self._digest

    def check_encoder(self, encoder_digest: str, space: Space) -> None:
        """Accept any encoder."""


class SilentWatch(QualityWatch):
    """Decide as a gateway does, without its metrics: they cost more than the decision."""

    def _show(self, model_digest: str) -> None:
        """Publish nothing."""


@dataclass(frozen=True)
class Shadow:
    """Describe an image that is to be generated again: the compared start, its cost in steps, and its pair."""

    start: UseLatent | UseImage
    similarity: float
    cost: int
    pair: MeasuredPair


@dataclass
class EarningHistory:
    """Store a history: shares of the from-scratch quality of all images and of hits, checks, steps, requests and
    trials. `reached`: the thresholds came near the profile's. `opened_at`: requests until the first one allowed reuse;
    `similarity`: the lowest one allowed at the end, None for none."""

    kept: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)
    image_steps: int = 0
    shadow_steps: int = 0
    trials: int = 0
    requests: int = 0
    reached: bool = False
    opened_at: int | None = None
    similarity: float | None = None


class Earning:
    """Play one history of requests against a gateway's rules and a frontdoor's budget."""

    def __init__(
        self,
        ledger: CacheLedger,
        similarities: np.ndarray,
        pairs: Sequence[MeasuredPair],
        seed: int,
        *,
        from_images: bool = False,
    ) -> None:
        base = SelectionRules((), (), ALPHA, renoised_share=RENOISED_SHARE, retaken_share=RETAKEN_SHARE)
        planned = PlannedCache(CacheChoice(), ReuseRules(base, earns=True))
        self._watch = SilentWatch(ledger, KnownEncoder(), planned)
        self._similarities = similarities
        self._pairs = pairs
        self._from_images = from_images
        self._places = np.array([pair.similarity for pair in pairs])
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._budget = ShadowBudget(WORK_SHARE, 1e9, 0.0)
        self._waiting: deque[Shadow] = deque(maxlen=MOST_WAITING)
        # Images of the model itself have no profile.
        self._aims = {} if from_images else profiled_thresholds()
        self.played = EarningHistory()

    async def play(self, most: int) -> EarningHistory:
        """Return the history of at most `most` requests."""
        played = self.played
        while played.requests < most and not played.reached:
            self._request(float(self._rng.choice(self._similarities)))
            played.requests += 1
            if await self._run_shadows():
                played.reached = self._is_near()
                played.similarity = min((row.min_similarity for row in self._rows()), default=None)
                if played.opened_at is None and played.similarity is not None:
                    played.opened_at = played.requests
            if played.requests % CHECK_EVERY == 0 or played.reached:
                played.checks.append(lower_bound(played.kept))
        return played

    def _request(self, similarity: float) -> None:
        tables, played = self._tables(), self.played
        rules = tables.rules()
        entries = (NearestEntry(similarity, () if self._from_images else KEPT_STEPS, self._from_images),)
        context = SelectionContext(STEP_COUNT, *(((), entries) if self._from_images else (entries, ())))
        found, pair = select_start(context, rules), self._pair(similarity)
        hit = found if isinstance(found, UseLatent | UseImage) else None
        steps = STEP_COUNT - (hit.saved_steps if hit is not None else 0)
        played.image_steps += steps
        self._budget.earn(steps)
        share = 1.0 if hit is None else share_of(pair, step_of(hit))
        played.kept.append(share)
        played.hits += [] if hit is None else [share]
        tested = next((one for one in tables.trials if one.from_image is self._from_images), None)
        trial = trial_start(context, rules, tested) if hit is None and tested is not None else None
        request_id = f"{self._seed}-{played.requests}"
        if hit is not None and is_sampled(request_id, SAMPLE_SHARE):
            self._waiting.append(Shadow(hit, similarity, STEP_COUNT, pair))
        if trial is not None and is_sampled(request_id, TRIAL_SHARE):
            self._waiting.append(Shadow(trial, similarity, STEP_COUNT - trial.saved_steps, pair))

    async def _run_shadows(self) -> bool:
        """Generate what the budget pays for; return whether anything was compared."""
        before = self.played.trials
        while self._waiting and self._budget.earn(0.0) >= self._waiting[0].cost:
            shadow = self._waiting.popleft()
            self._budget.spend(shadow.cost)
            self.played.shadow_steps += shadow.cost
            self.played.trials += 1
            await self._report(shadow)
        return self.played.trials > before

    async def _report(self, shadow: Shadow) -> None:
        step = step_of(shadow.start)
        quality = shadow.pair.qualities[recorded_step(step, shadow.pair.qualities)]
        seen = ComparedHit(
            request_id=str(self.played.trials),
            model_digest=MODEL,
            reference_model_digest=MODEL,
            encoder_digest=ENCODER,
            from_image=self._from_images,
            skipped_steps=step,
            step_count=STEP_COUNT,
            similarity=shadow.similarity,
            quality=quality,
            scratch_quality=shadow.pair.scratch_quality,
        )
        assert await self._watch.report(seen)

    def _pair(self, similarity: float) -> MeasuredPair:
        nearest = np.argsort(np.abs(self._places - similarity))[:NEIGHBOURS]
        return self._pairs[int(self._rng.choice(nearest))]

    def _tables(self) -> ModelReuse:
        return self._watch.of(MODEL, ENCODER, MODEL if self._from_images else "")

    def _rows(self) -> Thresholds:
        tables = self._tables()
        return (tables.images if self._from_images else tables.latents).thresholds

    def _is_near(self) -> bool:
        if not self._aims:
            return False
        rows = {row.saved_share: row.min_similarity for row in self._rows()}
        return all(abs(rows.get(share, CLOSED) - aim) <= NEAR for share, aim in self._aims.items())


def profiled_thresholds() -> dict[float, float]:
    """Return the shipped profile's lowest similarity by share of skipped steps."""
    found = read_profiles([PROFILES]).reuse(ReuseKind.LATENTS, digest_of(MODEL), None)
    assert found is not None
    table = thresholds(found, ThresholdRule.LOWER_BOUND)
    return {
        steps / STEP_COUNT: min(row.min_similarity for row in table if row.saved_share >= steps / STEP_COUNT)
        for steps in KEPT_STEPS
    }


def digest_of(model: str) -> str:
    """Return the digest that the shipped profiles have for a model."""
    profiles = read_profiles([PROFILES]).profiles
    return next(profile.of.model_digest for profile in profiles if profile.of.model == model)


def step_of(start: UseLatent | UseImage) -> int:
    """Return K."""
    return start.start_step if isinstance(start, UseImage) else start.resume_step


def recorded_step(step: int, recorded: Collection[int] = STEPS) -> int:
    """Return the recorded K that stands for K = `step`: never a smaller one."""
    return min(one for one in recorded if one >= step)


def share_of(pair: MeasuredPair, step: int) -> float:
    """Return the share of the from-scratch quality that a hit kept."""
    return pair.qualities[recorded_step(step, pair.qualities)] / pair.scratch_quality


def lower_bound(kept: Sequence[float]) -> float:
    """Return the one-sided 95 % lower bound of a mean, by the normal distribution."""
    mean, count = statistics.fmean(kept), len(kept)
    return mean - 1.645 * statistics.pstdev(kept) / count**0.5


def log_similarities(count: int) -> np.ndarray:
    """Return each prompt's similarity to its nearest earlier one in a scene log."""
    log = write_scene_log(count, clip_embedder(WEIGHTS / ENCODER), np.random.default_rng(LOG_SEED))
    found, _ = reuse(log.embeddings)
    return np.minimum(found, 1.0)


def histories(count: int, most: int, *, from_images: bool = False) -> list[EarningHistory]:
    """Play histories of other draws, each with an empty ledger."""
    torch.set_num_threads(1)
    quiet_loaders()
    pairs = read_pairs(IMAGE_PAIRS if from_images else PAIRS)
    similarities = np.array([pair.similarity for pair in pairs]) if from_images else log_similarities(LOG_COUNT)
    played = []
    for seed in range(count):
        with tempfile.TemporaryDirectory() as folder:
            ledger = open_cache_ledger(f"sqlite:///{Path(folder) / 'ledger.sqlite'}")
            played.append(asyncio.run(Earning(ledger, similarities, pairs, seed, from_images=from_images).play(most)))
            ledger.close()
    return played


def figures_of(played: Sequence[EarningHistory], most: int) -> list[Figure]:
    """Return the figures of latents; a history that never came near counts with all its requests."""
    near = measured(
        "requests until every threshold is within 0.02 of the profile's",
        [float(one.requests) for one in played],
        statistics.median,
        at_most(2000, "requests"),
    )
    shares = [
        Figure(f"histories {what} within {most:,} requests", statistics.fmean(found), informative(), len(played))
        for what, found in (
            ("with reuse", [one.opened_at is not None for one in played]),
            ("that came near", [one.reached for one in played]),
        )
    ]
    kept = measured(
        "recorded pairs from 0.95 on whose image keeps 0.9, K = 25",
        [float(share_of(pair, 25) >= ALPHA) for pair in read_pairs() if pair.similarity >= 0.95],
        statistics.fmean,
        informative(),
    )
    return [near, *earned_figures(played, most), *shares, kept]


def image_figures(played: Sequence[EarningHistory], most: int) -> list[Figure]:
    """Return the figures of images."""
    kept = measured(
        "images: recorded pairs whose image keeps 0.9, K = 30",
        [float(share_of(pair, 30) >= ALPHA) for pair in read_pairs(IMAGE_PAIRS)],
        statistics.fmean,
        informative(),
    )
    return [*earned_figures(played, most, "images: "), kept]


def earned_figures(played: Sequence[EarningHistory], most: int, prefix: str = "") -> list[Figure]:
    """Return the figures of both kinds; a history without reuse counts with all its requests."""
    hits = [float(share >= ALPHA) for one in played for share in one.hits]
    lowest = [one.similarity for one in played if one.similarity is not None]
    figures = [
        Figure(
            f"{prefix}least lower bound of the quality kept by all images, of all checks",
            min(check for one in played for check in one.checks),
            at_least(ALPHA),
            sum(len(one.checks) for one in played),
        ),
        Figure(
            f"{prefix}device seconds of shadows ÷ of images, most of all histories",
            max(one.shadow_steps / one.image_steps for one in played),
            at_most(WORK_SHARE),
            len(played),
        ),
        measured(
            f"{prefix}requests until a first threshold allows reuse",
            [float(one.opened_at or most) for one in played],
            statistics.median,
            informative("requests"),
        ),
    ]
    if hits and lowest:
        end = "lowest similarity allowed at the end"
        figures += [
            measured(f"{prefix}hits on the way that keep 0.9", hits, statistics.fmean, informative()),
            measured(
                f"{prefix}{end}" if prefix else f"{end}, of histories with reuse",
                lowest,
                statistics.median,
                informative(),
            ),
        ]
    return figures


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--histories", type=int, default=8)
        parser.add_argument("--requests", type=int, default=12_000, help="most requests of a history")

    options = parse_options("earned_reuse", __doc__, add)
    count, most = (2, 3000) if options.quick else (options.rest["histories"], options.rest["requests"])
    figures = figures_of(histories(count, most), most) + image_figures(histories(count, most, from_images=True), most)
    return publish(options, figures, notes={"histories": count, "most requests": most})


if __name__ == "__main__":
    raise SystemExit(main())
