"""Retrieval alone: a hit is answered with the stored picture as it is (GPT-CACHE and PINECONE in both papers, CRS).

Misses alone are stored. `donors_above` has a threshold; `donors_at_share` has the one under which as many requests are
answered from the store as by another system on the same log, which is how the papers compare: at their logs' hit rates,
0.88 to 0.93.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.reuse_ceiling import Vectors


def donors_above(texts: Vectors, keys: Vectors, least_similarity: float) -> list[int]:
    """Return the row whose picture each row gets: its own where no stored one's key is at least so near to its text.
    `keys` are the texts' vectors (PINECONE) or the pictures' (CRS), (rows, dimensions)."""
    donors: list[int] = []
    for row in range(len(texts)):
        stored = [before for before in range(row) if donors[before] == before]
        cosines = keys[stored] @ texts[row]
        near = len(stored) > 0 and float(cosines.max()) >= least_similarity
        donors.append(stored[int(np.argmax(cosines))] if near else row)
    return donors


def donors_at_share(texts: Vectors, keys: Vectors, rows: Sequence[int], share: float) -> list[int]:
    """Return the donors under the lowest threshold at which at most `share` of `rows` are answered from the store."""
    nearest = [float((keys[:row] @ texts[row]).max()) for row in range(1, len(texts))]
    thresholds = sorted(set(nearest))
    low, high = 0, len(thresholds)
    while low < high:
        middle = (low + high) // 2
        if hit_share(donors_above(texts, keys, thresholds[middle]), rows) <= share:
            high = middle
        else:
            low = middle + 1
    # Above any cosine where even the highest answers too many.
    return donors_above(texts, keys, thresholds[low] if low < len(thresholds) else 2.0)


def hit_share(donors: Sequence[int], rows: Sequence[int]) -> float:
    """Return the share of `rows` that get another row's picture."""
    return sum(donors[row] != row for row in rows) / len(rows)
