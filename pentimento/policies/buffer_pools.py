"""Choose the sizes of reusable buffers, and the buffer of a request (MLoRA, Eq. 7 to 9).

    sizes = pool_sizes({size: uses, …}, count=5)
    size = best_fit(sizes, wanted_bytes)

Sizes of buffers are the largest members of the clusters of requested sizes. The clustering is weighted k-means; in one
dimension clusters are intervals, so dynamic programming finds the best ones (Wang and Song, 2011).
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate


def pool_sizes(uses: Mapping[int, float], count: int) -> tuple[int, ...]:
    """Return at most `count` sizes of buffers, ascending, for requested sizes with their numbers of uses."""
    sizes = sorted(uses)
    cost = _Costs(sizes, [uses[size] for size in sizes])
    # Least cost of the first n sizes in the clusters so far, and the begin of the last cluster.
    least = [cost.of(0, end) for end in range(len(sizes) + 1)]
    begins: list[list[int]] = [[0] * (len(sizes) + 1)]
    for _ in range(min(count, len(sizes)) - 1):
        found = [
            min((least[start] + cost.of(start, end), start) for start in range(end + 1))
            for end in range(len(sizes) + 1)
        ]
        least = [value for value, _ in found]
        begins.append([start for _, start in found])
    ends, end = set(), len(sizes)
    for row in reversed(begins):
        if end:
            ends.add(sizes[end - 1])
        end = row[end]
    return tuple(sorted(ends))


def best_fit(sizes: Iterable[int], wanted: int) -> int | None:
    """Return the smallest size that is large enough; None if there is none."""
    return min((size for size in sizes if size >= wanted), default=None)


class _Costs:
    """Compute the weighted squared distances of neighbouring sizes to their mean."""

    def __init__(self, sizes: list[int], weights: list[float]) -> None:
        pairs = list(zip(sizes, weights, strict=True))
        self._weight = [0.0, *accumulate(weights)]
        self._sum = [0.0, *accumulate(weight * size for size, weight in pairs)]
        self._square = [0.0, *accumulate(weight * size * size for size, weight in pairs)]

    def of(self, start: int, end: int) -> float:
        """Return the cost of the sizes from `start` to before `end` in one cluster."""
        weight = self._weight[end] - self._weight[start]
        total = self._sum[end] - self._sum[start]
        return self._square[end] - self._square[start] - total * total / weight if weight else 0.0
