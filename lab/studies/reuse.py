"""Compute the reuse in a log: by cache size, by the age of the donor, and without bounds.

All results follow from one pass (`neighbours`): a prompt hits a first-in-first-out cache of W entries that every
prompt enters if and only if the youngest similar enough prompt is at most W prompts back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.studies.neighbours import NOBODY, TIE, EarlierNeighbours, Vectors, earlier_neighbours, nearest_of_misses
from pentimento.domain.errors import InvalidArgument

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SavingsRule:
    """From `min_similarity` (cosine) on, `saved_share` (K / N, 0..1) of the denoising steps are skipped."""

    min_similarity: float
    saved_share: float


SavingsTable = tuple[SavingsRule, ...]
# NIRVANA's K of 50 steps, as `pentimento.policies.cache_selection` has them: made for CLIP, not for other encoders.
NIRVANA_SAVINGS: SavingsTable = tuple(
    SavingsRule(similarity, steps / 50)
    for similarity, steps in ((0.65, 5), (0.75, 10), (0.85, 15), (0.90, 20), (0.95, 25))
)


@dataclass(frozen=True)
class SizePoint:
    """A first-in-first-out cache of `entries` prompts that every prompt enters, hit or miss; None is without bounds.
    `hit_rates` are by the table's rows, `saved_share` is of all denoising steps."""

    entries: int | None
    hit_rates: tuple[float, ...]
    saved_share: float


@dataclass(frozen=True)
class AgePoint:
    """Reuse of donors of at most `age` (prompts, or seconds). `hit_rates`, by the table's rows, are those of a cache
    that forgets older ones; `donor_share` is the share of all hits with a *nearest* donor up to that age."""

    age: float
    hit_rates: tuple[float, ...]
    donor_share: float | None


@dataclass(frozen=True)
class Ceiling:
    """Shares of all denoising steps that unbounded caches save: every prompt enters; only misses enter (NIRVANA); users
    find only their entries (None if the log has no users)."""

    saved_share: float
    saved_share_misses_only: float
    saved_share_own: float | None
    hit_rate: float
    hit_rate_misses_only: float
    hit_rate_own: float | None


@dataclass(frozen=True)
class LogReuse:
    """The outcome of one pass over n prompts in order. What comes before `warm_up` is in the cache and counts for
    nothing."""

    table: SavingsTable
    neighbours: EarlierNeighbours
    warm_up: int

    @classmethod
    def of(cls, vectors: Vectors, table: SavingsTable, warm_up: int = 0) -> "LogReuse":
        """Find the neighbours that the table asks for."""
        thresholds = [rule.min_similarity for rule in table]
        return cls(table, earlier_neighbours(vectors, thresholds), warm_up)

    def sizes(self, entries: Sequence[int]) -> tuple[SizePoint, ...]:
        """Return a point for each size, and the one without bounds last."""
        distances = self._distances()
        bounded = [self._size_point(distances, count) for count in entries]
        return (*bounded, self._size_point(distances, None))

    def _size_point(self, distances: Shares, entries: int | None) -> SizePoint:
        hits = np.isfinite(distances) if entries is None else distances <= entries
        saved = (hits * self._saved_shares()[:, None]).max(axis=0)
        return SizePoint(entries, tuple(hits.mean(axis=1).tolist()), float(saved.mean()))

    def ages(self, limits: Sequence[float], at_s: Shares | None) -> tuple[AgePoint, ...]:
        """Return a point for each limit, in prompts back, or in seconds where `at_s` (n,) is given."""
        ages = self._distances() if at_s is None else self._youngest_ages(at_s)
        nearest = self._nearest_ages(at_s)
        return tuple(
            AgePoint(
                limit,
                tuple((ages <= limit).mean(axis=1).tolist()),
                float((nearest <= limit).mean()) if len(nearest) else None,
            )
            for limit in limits
        )

    def nearest_at_least(self, similarity: float) -> float:
        """Return the share of prompts that have an earlier one so similar."""
        return float((self.neighbours.similarity[self.warm_up :] >= similarity - TIE).mean())

    def _distances(self) -> Shares:
        """(rules, counted prompts)"""
        rows = [self.neighbours.distances(row) for row in range(len(self.table))]
        return np.stack(rows)[:, self.warm_up :]

    def _youngest_ages(self, at_s: Shares) -> Shares:
        youngest = self.neighbours.youngest
        ages = np.where(youngest == NOBODY, np.inf, at_s - at_s[youngest])
        return np.asarray(ages[:, self.warm_up :], np.float64)

    def _nearest_ages(self, at_s: Shares | None) -> Shares:
        """Return the ages of nearest donors, for hits at the table's lowest row."""
        similarity, donor = self.neighbours.similarity, self.neighbours.donor
        hits = np.flatnonzero(similarity >= min(rule.min_similarity for rule in self.table) - TIE)
        hits = hits[hits >= self.warm_up]
        ages = hits - donor[hits] if at_s is None else at_s[hits] - at_s[donor[hits]]
        return np.asarray(ages, np.float64)

    def _saved_shares(self) -> Shares:
        return np.asarray([rule.saved_share for rule in self.table], np.float64)


def ceiling(vectors: Vectors, reuse: LogReuse, rows_of_users: Sequence[npt.NDArray[np.int64]] | None) -> Ceiling:
    """Return what caches without bounds would save of the log that `reuse` was made of; `rows_of_users` are the rows of
    each user, ascending."""
    table, warm_up = reuse.table, reuse.warm_up
    lowest = min(rule.min_similarity for rule in table)
    everyone = saved_by(reuse.neighbours.similarity, table)[warm_up:]
    misses = saved_by(nearest_of_misses(vectors, lowest), table)[warm_up:]
    own = None if rows_of_users is None else saved_by(_nearest_own(vectors, rows_of_users), table)[warm_up:]
    return Ceiling(
        saved_share=float(everyone.mean()),
        saved_share_misses_only=float(misses.mean()),
        saved_share_own=None if own is None else float(own.mean()),
        hit_rate=float((everyone > 0).mean()),
        hit_rate_misses_only=float((misses > 0).mean()),
        hit_rate_own=None if own is None else float((own > 0).mean()),
    )


def saved_by(similarity: npt.NDArray[np.float32], table: SavingsTable) -> Shares:
    """Return the share of steps that each cosine (n,) allows to skip (n,)."""
    shares = [np.where(similarity >= rule.min_similarity - TIE, rule.saved_share, 0.0) for rule in table]
    return np.asarray(np.max(shares, axis=0), np.float64)


def _nearest_own(vectors: Vectors, rows_of_users: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
    nearest = np.zeros(len(vectors), np.float32)
    for rows in rows_of_users:
        nearest[rows] = earlier_neighbours(vectors[rows], ()).similarity
    return nearest


def parse_table(text: str) -> SavingsTable:
    """Return the table of "0.65:0.1,0.95:0.5" (similarity:share of steps saved). InvalidArgument names the row."""
    rules = []
    for row in text.split(","):
        similarity, _, share = row.partition(":")
        try:
            rule = SavingsRule(float(similarity), float(share))
        except ValueError:
            rule = SavingsRule(np.nan, np.nan)
        if not (-1 <= rule.min_similarity <= 1 and 0 < rule.saved_share <= 1):
            raise InvalidArgument.of(
                "thresholds", f"must be rows like 0.65:0.1, cosine and share of steps, got {row!r}"
            )
        rules.append(rule)
    return tuple(sorted(rules, key=lambda rule: rule.min_similarity))
