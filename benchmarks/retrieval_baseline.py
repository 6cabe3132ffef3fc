"""Answer hits with stored images only, unchanged (GPT-CACHE and PINECONE in both papers, CRS).

Only misses are stored. `donors_above` has a threshold. `donors_at_share` chooses the threshold at which another
system's share of requests on the same log is answered from the store, which is how the papers compare: at their logs'
hit rates, 0.88 to 0.93.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.reuse_ceiling import Vectors


def donors_above(texts: Vectors, keys: Vectors, least_similarity: float) -> list[int]:
    """Return the row that answers each row: itself, if no stored key is near enough to its text.

    `keys` are the texts' vectors (PINECONE) or the images' (CRS), (rows, dimensions).
    """
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
    # above any cosine if even the highest threshold answers too many
    return donors_above(texts, keys, thresholds[low] if low < len(thresholds) else 2.0)


def hit_share(donors: Sequence[int], rows: Sequence[int]) -> float:
    """Return the share of `rows` that get another row's image."""
    return sum(donors[row] != row for row in rows) / len(rows)
