"""How long clusters of prompts stay popular (NIRVANA, section 3, figure 5).

Each window of the log (a day) is clustered on its own. A top cluster lives on in a later window when its most popular
prompt would belong to one of the top clusters there: when it is within `eps` of one of their core points. The paper
does not say how it tells the same cluster on another day; this is DBSCAN's own rule for a point that comes later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from pentimento.studies.clustering import dbscan
from pentimento.studies.neighbours import TIE, Indices, Vectors


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
class _Tops:
    """The top clusters of a window: the most popular prompt of each (tops, width) and all their core points."""

    most_popular: Vectors
    cores: Vectors


@dataclass(frozen=True)
class DistinctPrompts:
    """The distinct prompts of a window in the order of their first use: vectors (n, width) and uses (n,)."""

    vectors: Vectors
    uses: Indices

    @classmethod
    def of(cls, prompts: Sequence[str], vectors: Vectors) -> "DistinctPrompts":
        """Count equal prompts as one with a weight: the clusters are the same, the work is less."""
        first: dict[str, int] = {}
        uses: dict[str, int] = {}
        for index, prompt in enumerate(prompts):
            first.setdefault(prompt, index)
            uses[prompt] = uses.get(prompt, 0) + 1
        return cls(vectors[list(first.values())], np.asarray(list(uses.values()), np.int64))


def cluster_longevity(
    windows: Sequence[DistinctPrompts], eps: float, top_percents: Sequence[float], min_samples: int
) -> tuple[tuple[WindowClusters, ...], tuple[Longevity, ...]]:
    """Return the clusters of every window, and what of the top ones is left by lag (1 and more) and top share."""
    seen: list[WindowClusters] = []
    tops: dict[float, list[_Tops]] = {percent: [] for percent in top_percents}
    for number, window in enumerate(windows):
        found = dbscan(window.vectors, window.uses, eps, min_samples)
        sizes = found.sizes(window.uses)
        total = int(window.uses.sum())
        largest = int(sizes.max(initial=0))
        seen.append(WindowClusters(eps, number, total, found.count, sizes.sum() / total, largest / total))
        for percent in top_percents:
            tops[percent].append(_tops(window, found.labels, found.is_core, sizes, percent))
    lags = range(1, len(windows))
    rows = [_longevity(tops[percent], eps, percent, lag) for percent in top_percents for lag in lags]
    return tuple(seen), tuple(rows)


def _tops(
    window: DistinctPrompts, labels: Indices, is_core: npt.NDArray[np.bool_], sizes: Indices, percent: float
) -> _Tops:
    count = ceil(percent / 100 * len(sizes))
    top = np.argsort(-sizes, kind="stable")[:count]
    members = [np.flatnonzero(labels == cluster) for cluster in top]
    popular = [int(inside[window.uses[inside].argmax()]) for inside in members]
    cores = np.flatnonzero(is_core & np.isin(labels, top))
    return _Tops(window.vectors[popular], window.vectors[cores])


def _longevity(tops: Sequence[_Tops], eps: float, percent: float, lag: int) -> Longevity:
    pairs = [(tops[base], tops[base + lag]) for base in range(len(tops) - lag)]
    kept = [_kept(one, later, eps) for one, later in pairs]
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


def _kept(one: _Tops, later: _Tops, eps: float) -> int:
    if not len(one.most_popular) or not len(later.cores):
        return 0
    # A few top prompts against a window's cores: row by row stays within one row of memory.
    nearest = [float((later.cores @ prompt).max()) for prompt in one.most_popular]
    return sum(value >= 1.0 - eps - TIE for value in nearest)
