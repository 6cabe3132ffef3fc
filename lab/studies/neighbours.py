"""Find the nearest earlier prompts of every prompt, by brute force in blocks: exact, in bounded memory.

100,000 prompts of 384 dimensions are 4 TFLOP: minutes on one core. Apart from the vectors no array is larger than
BLOCK_ROWS x CHUNK_COLUMNS.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

BLOCK_ROWS = 512
CHUNK_COLUMNS = 4096
# Cosines of equal vectors differ by so much, depending on where in a block they stand.
TIE = 1e-6
NOBODY = -1
# Below every cosine: what a prompt that has no earlier one is compared with.
NO_SIMILARITY = -2.0


@dataclass(frozen=True)
class EarlierNeighbours:
    """Neighbours of n prompts in the order of their times. `similarity` (n,): cosine to the nearest earlier prompt,
    NO_SIMILARITY for the first. `donor` (n,): the index of that prompt, the youngest within TIE. `youngest`
    (thresholds, n): the index of the youngest earlier prompt at least that similar. NOBODY stands for no such
    prompt."""

    thresholds: tuple[float, ...]
    similarity: npt.NDArray[np.float32]
    donor: Indices
    youngest: Indices

    def distances(self, row: int) -> npt.NDArray[np.float64]:
        """Return how many prompts back the youngest of `thresholds[row]` is (n,); 1 is the one before, inf is none."""
        back = np.arange(self.youngest.shape[1]) - self.youngest[row]
        return np.where(self.youngest[row] == NOBODY, np.inf, back.astype(np.float64))


def earlier_neighbours(vectors: Vectors, thresholds: Sequence[float]) -> EarlierNeighbours:
    """Return the neighbours of unit vectors (n, width); a cosine within TIE below a threshold reaches it."""
    count = len(vectors)
    found = EarlierNeighbours(
        tuple(thresholds),
        np.full(count, NO_SIMILARITY, np.float32),
        np.full(count, NOBODY, np.int64),
        np.full((len(thresholds), count), NOBODY, np.int64),
    )
    for rows in blocks(count, BLOCK_ROWS):
        # From the newest to the oldest: the first that reaches a threshold is the youngest.
        for columns in reversed(list(blocks(rows.stop, CHUNK_COLUMNS))):
            _take(found, rows, columns, _earlier_cosines(vectors, rows, columns))
    return found


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover 0..count in order."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _earlier_cosines(vectors: Vectors, rows: slice, columns: slice) -> Vectors:
    """Cosines (rows, columns); NO_SIMILARITY where the column is not earlier than the row."""
    cosines: Vectors = vectors[rows] @ vectors[columns].T
    if columns.stop > rows.start:
        later = np.arange(columns.start, columns.stop) >= np.arange(rows.start, rows.stop)[:, None]
        cosines[later] = NO_SIMILARITY
    return cosines


def _take(found: EarlierNeighbours, rows: slice, columns: slice, cosines: Vectors) -> None:
    """Change `found` by what this chunk of older prompts adds."""
    nearest = cosines.max(axis=1)
    better = np.flatnonzero(nearest > found.similarity[rows] + TIE)
    last = _last_reaching(cosines[better], nearest[better, None] - TIE)
    found.donor[rows.start + better] = columns.start + last
    np.maximum(found.similarity[rows], nearest, out=found.similarity[rows])
    for youngest, threshold in zip(found.youngest, found.thresholds, strict=True):
        new = np.flatnonzero((youngest[rows] == NOBODY) & (nearest >= threshold - TIE))
        youngest[rows.start + new] = columns.start + _last_reaching(cosines[new], threshold - TIE)


def _last_reaching(cosines: Vectors, limit: float | Vectors) -> Indices:
    """The last column of each row that reaches its limit; every row has one."""
    reversed_hits = (cosines >= limit)[:, ::-1]
    return np.asarray(cosines.shape[1] - 1 - reversed_hits.argmax(axis=1), np.int64)


def nearest_of_misses(vectors: Vectors, enough: float) -> npt.NDArray[np.float32]:
    """Return the cosine of every prompt to its nearest earlier prompt *that was a miss* (n,). A miss has no such prompt
    of at least `enough`. This is an unbounded cache that only misses enter (NIRVANA, section 5)."""
    count = len(vectors)
    nearest = np.full(count, NO_SIMILARITY, np.float32)
    kept = np.zeros(count, np.int64)
    kept_count = 0
    for rows in blocks(count, BLOCK_ROWS):
        best = _nearest_among(vectors, rows, kept[:kept_count])
        inside = vectors[rows] @ vectors[rows].T
        fresh: list[int] = []
        for row in range(rows.stop - rows.start):
            value = max(float(best[row]), float(inside[row, fresh].max()) if fresh else NO_SIMILARITY)
            nearest[rows.start + row] = value
            if value < enough - TIE:
                fresh.append(row)
        kept[kept_count : kept_count + len(fresh)] = rows.start + np.asarray(fresh, np.int64)
        kept_count += len(fresh)
    return nearest


def _nearest_among(vectors: Vectors, rows: slice, kept: Indices) -> npt.NDArray[np.float32]:
    best = np.full(rows.stop - rows.start, NO_SIMILARITY, np.float32)
    for chunk in blocks(len(kept), CHUNK_COLUMNS):
        np.maximum(best, (vectors[rows] @ vectors[kept[chunk]].T).max(axis=1), out=best)
    return best


def near_blocks(
    vectors: Vectors, rows_of: Indices, columns_of: Indices, minimum: float
) -> Iterator[tuple[Indices, Indices, npt.NDArray[np.bool_]]]:
    """Yield (rows, columns, near) of all pairs in `rows_of` x `columns_of`, block by block; `near` (rows, columns) is
    where the cosine is at least `minimum`, less TIE."""
    for rows in blocks(len(rows_of), BLOCK_ROWS):
        mine = vectors[rows_of[rows]]
        for columns in blocks(len(columns_of), CHUNK_COLUMNS):
            near = mine @ vectors[columns_of[columns]].T >= minimum - TIE
            yield rows_of[rows], columns_of[columns], near
