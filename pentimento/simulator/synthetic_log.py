"""A made-up prompt log with the locality of a real one: embeddings only, for scenarios that ship without data.

Each prompt is drawn at a chosen cosine from a recent one, so the distribution of the similarity to the nearest
previous prompt is what it was asked to be: by default that of DiffusionDB's first 5,000 prompts under a sentence
encoder, 74, 61, 50, 43 and 32 % above 0.65, 0.75, 0.85, 0.90 and 0.95.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DIFFUSIONDB_SHARES = ((0.65, 0.74), (0.75, 0.61), (0.85, 0.50), (0.90, 0.43), (0.95, 0.32))

# Unrelated prompts of so many dimensions are nowhere near one another: 4 sigma is 0.35.
DIMENSIONS = 128


def synthetic_log(
    count: int,
    rng: np.random.Generator,
    shares: Sequence[tuple[float, float]] = DIFFUSIONDB_SHARES,
    mean_age: float = 30.0,
) -> npt.NDArray[np.float32]:
    """(count, 128) unit vectors. `shares`: (similarity, share of prompts whose nearest previous one is above it),
    ascending; `mean_age`: how many prompts ago the one was that a prompt follows, on average (geometric)."""
    vectors = rng.standard_normal((count, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    targets = _similarities(count, rng, shares)
    ages = rng.geometric(1.0 / mean_age, size=count)
    for index in range(1, count):
        if targets[index] > 0.0:
            parent = vectors[max(0, index - ages[index])]
            own = vectors[index] - (vectors[index] @ parent) * parent
            own /= np.linalg.norm(own)
            vectors[index] = targets[index] * parent + np.sqrt(1.0 - targets[index] ** 2) * own
    return vectors


def _similarities(
    count: int, rng: np.random.Generator, shares: Sequence[tuple[float, float]]
) -> npt.NDArray[np.float64]:
    """Drawn so that each threshold is passed by its share; 0 for a prompt that follows none."""
    thresholds = [threshold for threshold, _ in shares] + [1.0]
    above = [share for _, share in shares] + [0.0]
    # Evenly spread and shuffled: a log of any length has the shares, not only a long one.
    draws, offsets = rng.permutation(count) / count, rng.random(count)
    similarities = np.zeros(count)
    for index, threshold in enumerate(thresholds[:-1]):
        inside = (draws < above[index]) & (draws >= above[index + 1])
        similarities[inside] = threshold + offsets[inside] * (thresholds[index + 1] - threshold)
    return similarities
