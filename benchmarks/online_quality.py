"""Measure whether a threshold recovers after the requests change: hits keep less quality, the threshold rises, quality
returns.

    python -m benchmarks.online_quality [--histories 16]

Simulated: requests, donors and hits' quality are drawn. The tables are those of the shipped selector profiles (latents
and images of the zoo), and the thresholds move by the gateway's functions (`policies.online_quality`,
`policies.reuse_rules`), sample by sample, with the shipped shares and limits: 2 % of the hits are generated again
from noise, the newest 400 count.

A history has three parts. *As profiled*: 98.5 % of hits keep alpha. *Shifted*: of the hits in the lower 40 % of the
similarities that the profile allows, 60 % keep it. *As profiled again*. Every history is also played with fixed
thresholds. Similarities of the nearest donors are uniform from a little below the profile's least threshold up to
`TOP`.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.selector_profile import PROFILES
from lab.runs.measure import Figure, at_least, at_most, informative, measured, parse_options, publish
from pentimento.domain.online_quality import ComparedHit, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.policies.cache_selection import SelectionRules, Threshold, skipped_steps
from pentimento.policies.online_quality import followed
from pentimento.policies.reuse_rules import FollowedRow, ModelReuse, ReuseRules, followed_rows, in_force, row_of
from pentimento.profiles.catalogue import ProfileSet, read_profiles
from pentimento.profiles.document import Profile, ProfileKind, ReuseKind
from pentimento.profiles.kinds import reuses_images, start_of, thresholds

SAMPLE_SHARE, KEPT_SAMPLE_COUNT = 0.02, 400
AS_PROFILED, SHIFTED, SHIFTED_BELOW = 0.985, 0.6, 0.4
PARTS = {"as profiled": 6_000, "shifted": 24_000, "as profiled again": 48_000}
TOP = {ReuseKind.LATENTS: 1.0, ReuseKind.IMAGES: 0.9}
STEP_COUNT = 50
REQUIRED = 0.95


@dataclass
class PlayedHistory:
    """Store a history's results by part.

    `kept`: whether each hit kept alpha; `hits`: whether each request hit; `least`: the lowest similarity allowed at its
    end; `raised_after`: hits of the shifted part until the threshold first rose, None if it never did.
    """

    kept: dict[str, list[bool]] = field(default_factory=dict)
    hits: dict[str, list[bool]] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    raised_after: int | None = None


class HistoryPlayer:
    """Play one model's tables over one history."""

    def __init__(self, profile: Profile, rng: np.random.Generator, *, follows: bool) -> None:
        rules = ReuseRules(SelectionRules(latents=(), images=()), ProfileSet((profile,)))
        self._profile = profile
        self._rng = rng
        self._follows = follows
        self._own = rules.of(profile.of.model_digest, profile.of.encoder_digest)
        self._rows = followed_rows(self._own, profile.of.model_digest, profile.of.encoder_digest)
        self._samples: dict[WatchedThreshold, list[QualitySample]] = {}
        self._positions: dict[WatchedThreshold, ThresholdPosition] = {}
        self._tables = self._table(self._own)
        self._count = 0
        self._least = min(row.threshold.min_similarity for row in self._rows)

    def play(self) -> PlayedHistory:
        """Return the history."""
        played = PlayedHistory()
        for part, count in PARTS.items():
            kept, hits = played.kept.setdefault(part, []), played.hits.setdefault(part, [])
            for _ in range(count):
                outcome = self._request(part)
                hits.append(outcome is not None)
                kept += [] if outcome is None else [outcome]
                if part == "shifted" and played.raised_after is None and self._is_raised:
                    played.raised_after = len(kept)
            played.least[part] = min(row.min_similarity for row in self._tables)
        return played

    @property
    def _is_raised(self) -> bool:
        return min(row.min_similarity for row in self._tables) > self._least

    def _request(self, part: str) -> bool | None:
        """Return whether a hit kept alpha; None for a miss."""
        top = TOP[start_of(self._profile)]
        similarity = float(self._rng.uniform(self._least - 0.1 * (top - self._least), top))
        allowed = [row for row in self._tables if similarity >= row.min_similarity]
        if not allowed:
            return None
        row = max(allowed, key=lambda row: row.saved_share)
        edge = self._least + SHIFTED_BELOW * (top - self._least)
        share = SHIFTED if part == "shifted" and similarity < edge else AS_PROFILED
        kept = bool(self._rng.random() < share)
        if self._follows and self._rng.random() < SAMPLE_SHARE:
            self._report(row, similarity, kept)
        return kept

    def _report(self, row: Threshold, similarity: float, kept: bool) -> None:
        """Report a hit that was generated again, as to the gateway."""
        self._count += 1
        alpha, profile = self._profile.asked.alpha, self._profile
        quality = alpha + self._rng.uniform(0.0, 0.1) if kept else alpha - self._rng.uniform(0.02, 0.3)
        seen = ComparedHit(
            request_id=str(self._count),
            model_digest=profile.of.model_digest,
            reference_model_digest=profile.of.reference_digest or profile.of.model_digest,
            encoder_digest=profile.of.encoder_digest,
            from_image=reuses_images(profile),
            skipped_steps=skipped_steps(row, STEP_COUNT),
            step_count=STEP_COUNT,
            similarity=similarity,
            quality=float(quality),
            scratch_quality=1.0,
        )
        found = row_of(self._rows, seen)
        assert found is not None
        self._move(found, QualitySample(self._count, similarity, float(quality), 1.0))

    def _move(self, row: FollowedRow, sample: QualitySample) -> None:
        samples = [*self._samples.get(row.watched, []), sample][-KEPT_SAMPLE_COUNT:]
        self._samples[row.watched] = samples
        before = self._positions.get(row.watched, ThresholdPosition())
        profiled, table = row.threshold.min_similarity, row.table
        self._positions[row.watched] = followed(samples, before, profiled, table.alpha, table.rule)
        of = self._profile.of
        self._tables = self._table(in_force(self._own, of.model_digest, of.encoder_digest, self._positions))

    def _table(self, reuse: ModelReuse) -> tuple[Threshold, ...]:
        table = reuse.images if reuses_images(self._profile) else reuse.latents
        return table.thresholds


def figures_of(profile: Profile, count: int) -> list[Figure]:
    """Return the figures of a profile over `count` histories, each played twice with the same seed."""
    still, moving = (
        [HistoryPlayer(profile, np.random.default_rng(seed), follows=follows).play() for seed in range(count)]
        for follows in (False, True)
    )
    what = f"{start_of(profile).value} of {profile.of.model}"
    return [
        shared(f"{what}: hits that keep alpha as profiled", [_mean(one.kept["as profiled"]) for one in moving]),
        measured(
            f"{what}: histories whose threshold rose before anything changed",
            [float(one.least["as profiled"] > still[0].least["as profiled"]) for one in moving],
            statistics.fmean,
            at_most(0.05),
        ),
        shared(f"{what}, shifted: hits that keep alpha, thresholds as they are", [_late(one.kept) for one in still]),
        measured(
            f"{what}, shifted: hits that keep alpha once thresholds followed (second half)",
            [_late(one.kept) for one in moving],
            statistics.fmean,
            at_least(REQUIRED),
        ),
        measured(
            f"{what}, shifted: histories whose threshold rose",
            [float(one.raised_after is not None) for one in moving],
            statistics.fmean,
            at_least(1.0),
        ),
        measured(
            f"{what}, shifted: hits until the threshold first rose, of which 2 % were painted again",
            [float(one.raised_after) for one in moving if one.raised_after is not None],
            statistics.median,
            informative("hits"),
        ),
        shared(f"{what}, shifted: hits ÷ those with thresholds as they are", _hits_left(moving, still, "shifted")),
        measured(
            f"{what}, as profiled again: hits of the last quarter ÷ those with thresholds as they are",
            _hits_left(moving, still, "as profiled again"),
            statistics.fmean,
            at_least(0.9),
        ),
    ]


def shared(name: str, samples: Sequence[float]) -> Figure:
    return measured(name, samples, statistics.fmean, informative())


def _mean(flags: Sequence[bool]) -> float:
    return sum(flags) / max(len(flags), 1)


def _late(kept: dict[str, list[bool]]) -> float:
    flags = kept["shifted"]
    return _mean(flags[len(flags) // 2 :])


def _hits_left(moving: Sequence[PlayedHistory], still: Sequence[PlayedHistory], part: str) -> list[float]:
    last = PARTS[part] * 3 // 4
    pairs = zip(moving, still, strict=True)
    return [_mean(ours.hits[part][last:]) / _mean(theirs.hits[part][last:]) for ours, theirs in pairs]


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--histories", type=int, default=16)

    options = parse_options("online_quality", __doc__, add)
    count = 4 if options.quick else options.rest["histories"]
    profiles = [one for one in read_profiles([PROFILES]).of(ProfileKind.REUSE) if thresholds(one)]
    figures = [figure for profile in profiles for figure in figures_of(profile, count)]
    return publish(options, figures, notes={"histories": count})


if __name__ == "__main__":
    raise SystemExit(main())
