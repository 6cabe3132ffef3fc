"""Make a prompt log with the locality of a real one: embeddings only, for scenarios that ship without data.

A prompt continues a recent one, returns to a theme that may be old, begins a theme of a known genre, or resembles no
earlier one. All prompts of a theme are near one another, those of a genre are similar, and a prompt's distance to
its predecessor is drawn. The log therefore has the properties that matter to caches: the similarity of the nearest
previous prompt (93, 74, 61, 50, 43 and 32 % above 0.47, 0.65, 0.75, 0.85, 0.90 and 0.95), its age, and the hits that
remain without the newest prompts, which may be running or evicted. The first value equals that of DiffusionDB's
first 3,500 prompts under a sentence encoder; the others lie within eight points of it, mostly below.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Shares = Sequence[tuple[float, float]]

# (similarity, share of all prompts that follow another above it): for prompts that continue a recent one, and for
# prompts that return to a theme
RECENT: Shares = ((0.65, 0.46), (0.75, 0.44), (0.85, 0.39), (0.90, 0.35), (0.95, 0.27))
REVISITING: Shares = ((0.65, 0.28), (0.75, 0.17), (0.85, 0.11), (0.90, 0.08), (0.95, 0.05))

# (share, how many prompts ago at most): where those begin.
RECENT_AGES: Shares = ((0.0, 1), (0.085, 1), (0.295, 2), (0.47, 3), (0.685, 5), (0.89, 10), (1.0, 30))
REVISITED_AGES: Shares = ((0.0, 3), (0.1, 30), (0.2, 100), (0.25, 300), (0.3, 1_000), (1.0, 1_000_000))

# The share of prompts that begin a theme of a genre that was there before.
KNOWN_GENRE = 0.19

# Cosines of two prompts that share a theme and nothing else, and of two that share a genre alone. By chance they are
# 0.05 off at most, so that the former stay above 0.6 and the latter within 0.48 and 0.6.
THEME, GENRE = 0.68, 0.54

# Unrelated prompts are far apart at this width: 4 sigma is 0.25.
DIMENSIONS = 256


def synthetic_log(count: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """(count, 256) unit vectors."""
    genres, themes, own = _units(count, rng), _units(count, rng), _units(count, rng)
    similarities, ages = _followed(count, rng)
    for index in range(1, count):
        # A prompt that would follow one before the log follows a random one.
        age = int(ages[index]) if 0 < ages[index] <= index else int(rng.integers(1, index + 1))
        parent = index - age
        if similarities[index] > 0.0:
            genres[index] = genres[parent]
        if similarities[index] > GENRE:
            themes[index] = themes[parent]
            own[index] = _near(own[parent], own[index], max(0.0, (similarities[index] - THEME) / (1.0 - THEME)))
    vectors = np.sqrt(GENRE) * genres + np.sqrt(THEME - GENRE) * themes + np.sqrt(1.0 - THEME) * own
    scaled: npt.NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def _units(count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    vectors = rng.standard_normal((count, DIMENSIONS))
    units: npt.NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _near(parent: npt.NDArray[np.float64], other: npt.NDArray[np.float64], cosine: float) -> npt.NDArray[np.float64]:
    """The unit vector at that cosine from `parent`, towards `other`."""
    across = other - (other @ parent) * parent
    near: npt.NDArray[np.float64] = cosine * parent + np.sqrt(1.0 - cosine**2) * across / np.linalg.norm(across)
    return near


def _followed(count: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each prompt's similarity to its predecessor (0: it follows none), and the predecessor's age in prompts (0:
    any).

    Values are evenly spread and shuffled, so that a log of any length has the shares.
    """
    draws, offsets, quantiles = rng.permutation(count) / count, rng.random(count), rng.random(count)
    recent, followed = RECENT[0][1], RECENT[0][1] + REVISITING[0][1]
    similarities = np.where(draws < recent, _drawn(RECENT, draws, offsets), _drawn(REVISITING, draws - recent, offsets))
    similarities[(draws >= followed) & (draws < followed + KNOWN_GENRE)] = GENRE
    ages = np.where(draws < recent, _aged(RECENT_AGES, quantiles), _aged(REVISITED_AGES, quantiles))
    # A genre is come back to as often as it has been.
    ages[draws >= followed] = 0.0
    return similarities, np.round(ages).astype(np.float64)


def _drawn(shares: Shares, draws: npt.NDArray[np.float64], offsets: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each threshold is passed by its share; even in between."""
    thresholds, above = [*(threshold for threshold, _ in shares), 1.0], [*(share for _, share in shares), 0.0]
    similarities = np.zeros(len(draws))
    for index, threshold in enumerate(thresholds[:-1]):
        inside = (draws < above[index]) & (draws >= above[index + 1])
        similarities[inside] = threshold + offsets[inside] * (thresholds[index + 1] - threshold)
    return similarities


def _aged(ages: Shares, quantiles: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """On the straight line of logarithms between the points."""
    aged: npt.NDArray[np.float64] = np.exp(
        np.interp(quantiles, [share for share, _ in ages], np.log([age for _, age in ages]))
    )
    return aged
