"""A made-up prompt log with the locality of a real one: embeddings only, for scenarios that ship without data.

Each prompt is drawn at a chosen cosine from an earlier one, so the distribution of the similarity to the nearest
previous prompt is what it was asked to be: by default that of DiffusionDB's first 5,000 prompts under a sentence
encoder, 74, 61, 50, 43 and 32 % above 0.65, 0.75, 0.85, 0.90 and 0.95. So is how far back one has to look for it: half
of them within five prompts, a sixth beyond a hundred.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DIFFUSIONDB_SHARES = ((0.65, 0.74), (0.75, 0.61), (0.85, 0.50), (0.90, 0.43), (0.95, 0.32))

# (share, prompts): of its first 3,500 prompts that follow an earlier one, how many find one within so many prompts.
# What is beyond 1,000 is spread up to 5,000, further than could be measured.
DIFFUSIONDB_AGES = (
    *((0.0, 1), (0.062, 1), (0.215, 2), (0.343, 3), (0.5, 5), (0.649, 10)),
    *((0.772, 30), (0.841, 100), (0.927, 300), (0.96, 1_000), (1.0, 5_000)),
)

# Unrelated prompts of so many dimensions are nowhere near one another: 4 sigma is 0.35.
DIMENSIONS = 128


def synthetic_log(
    count: int,
    rng: np.random.Generator,
    shares: Sequence[tuple[float, float]] = DIFFUSIONDB_SHARES,
    ages: Sequence[tuple[float, float]] = DIFFUSIONDB_AGES,
) -> npt.NDArray[np.float32]:
    """(count, 128) unit vectors. `shares`: (similarity, share of prompts whose nearest previous one is above it),
    ascending; `ages`: (share, within how many prompts these find the one that they follow), ascending, in between on
    the straight line of logarithms."""
    vectors = rng.standard_normal((count, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    targets = _similarities(count, rng, shares)
    ago = np.exp(np.interp(rng.random(count), [share for share, _ in ages], np.log([age for _, age in ages])))
    for index in range(1, count):
        if targets[index] > 0.0:
            # Who would follow one from before the log follows anyone.
            age = round(ago[index]) if round(ago[index]) <= index else int(rng.integers(1, index + 1))
            parent = vectors[index - age]
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
