"""How long clusters of prompts stay popular (NIRVANA, section 3, figure 5).

Each window of the log (a day) is clustered on its own. A top cluster lives on in a later window when its most popular
prompt would belong to one of the top clusters there: when it is within `eps` of one of their core points. The paper
does not say how it tells the same cluster on another day; this is DBSCAN's own rule for a point that comes later.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from lab.studies.clustering import Clusters, dbscan
from lab.studies.neighbours import Indices, Vectors, near_blocks


@dataclass(frozen=True)
class WindowClusters:
    """One window's clusters at one `eps`. `clustered_share` and `largest_share` are of the window's prompts."""

    eps: float
    window: int
    prompt_count: int
    cluster_count: int
    clustered_share: float
    largest_share: float


@dataclass(frozen=True)
class Longevity:
    """The share of the top `top_percent` % of clusters that are still at the top `lag` windows later. `share` is over
    all first windows, `share_from_first` starts at the log's first window alone, as the paper does; None where the
    window has no cluster. `base_count` is the number of top clusters that `share` is over."""

    eps: float
    top_percent: float
    lag: int
    share: float | None
    share_from_first: float | None
    base_count: int


@dataclass(frozen=True)
class DistinctPrompts:
    """The distinct prompts of a window in the order of their first use: the row of each in the log (n,), uses (n,)."""

    rows: Indices
    uses: Indices

    @classmethod
    def of(cls, prompts: Sequence[str], window: Indices) -> "DistinctPrompts":
        """Count equal prompts as one with a weight: the clusters are the same, the work is less. `window` are rows of
        the log's `prompts`."""
        first: dict[str, int] = {}
        uses: Counter[str] = Counter()
        for row in window:
            first.setdefault(prompts[row], int(row))
            uses[prompts[row]] += 1
        return cls(np.asarray(list(first.values()), np.int64), np.asarray(list(uses.values()), np.int64))


@dataclass(frozen=True)
class _Tops:
    """The top clusters of a window, by rows of the log: the most popular prompt of each, and all their core points."""

    most_popular: Indices
    cores: Indices


def cluster_longevity(
    vectors: Vectors, windows: Sequence[DistinctPrompts], eps: float, top_percents: Sequence[float], min_samples: int
) -> tuple[tuple[WindowClusters, ...], tuple[Longevity, ...]]:
    """Return the clusters of every window, and what of the top ones is left by lag (1 and more) and top share;
    `vectors` (n, width) are the log's."""
    seen: list[WindowClusters] = []
    tops: dict[float, list[_Tops]] = {percent: [] for percent in top_percents}
    for number, window in enumerate(windows):
        found = dbscan(vectors[window.rows], window.uses, eps, min_samples)
        sizes = found.sizes(window.uses)
        total = int(window.uses.sum())
        largest = int(sizes.max(initial=0))
        seen.append(WindowClusters(eps, number, total, found.count, sizes.sum() / total, largest / total))
        for percent in top_percents:
            tops[percent].append(_tops(window, found, sizes, percent))
    lags = range(1, len(windows))
    rows = [_longevity(vectors, tops[percent], eps, percent, lag) for percent in top_percents for lag in lags]
    return tuple(seen), tuple(rows)


def _tops(window: DistinctPrompts, found: Clusters, sizes: Indices, percent: float) -> _Tops:
    count = ceil(percent / 100 * len(sizes))
    top = np.argsort(-sizes, kind="stable")[:count]
    members = [np.flatnonzero(found.labels == cluster) for cluster in top]
    popular = [int(inside[window.uses[inside].argmax()]) for inside in members]
    cores = np.flatnonzero(found.is_core & np.isin(found.labels, top))
    return _Tops(window.rows[popular], window.rows[cores])


def _longevity(vectors: Vectors, tops: Sequence[_Tops], eps: float, percent: float, lag: int) -> Longevity:
    pairs = [(tops[base], tops[base + lag]) for base in range(len(tops) - lag)]
    kept = [_kept(vectors, one, later, eps) for one, later in pairs]
    bases = [len(one.most_popular) for one, _ in pairs]
    total = sum(bases)
    return Longevity(
        eps=eps,
        top_percent=percent,
        lag=lag,
        share=sum(kept) / total if total else None,
        share_from_first=kept[0] / bases[0] if bases[0] else None,
        base_count=total,
    )


def _kept(vectors: Vectors, one: _Tops, later: _Tops, eps: float) -> int:
    """How many of the most popular prompts would belong to a later top cluster."""
    there = np.zeros(len(vectors), np.bool_)
    for rows, _, near in near_blocks(vectors, one.most_popular, later.cores, 1.0 - eps):
        there[rows] |= near.any(axis=1)
    return int(there[one.most_popular].sum())
