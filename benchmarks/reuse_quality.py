"""What pictures of reuse are worth beside those of the heavy model from scratch, and the gate that they have to pass.

Everything here is arithmetic over what judges said of the pictures: rows are requests, the same ones in the same order
for every set. The Fréchet distance is that of FID (Heusel et al. 2017) over another network's features; with a few
hundred pictures it is between their projections onto the directions in which vanilla's pictures vary most, since no
covariance of more features can be estimated from so few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DIRECTIONS_COUNT = 32


@dataclass(frozen=True)
class JudgedPictures:
    """What was said of a set of pictures: `scores` (n,), cosines of picture and prompt by an encoder that neither
    routes nor was trained on; `routing_scores` (n,), the same by the encoder that the cache searches by; `right` and
    `asked` (n, attributes), what the judge sees of what was asked for; `features` (n, d), the judge's."""

    scores: Array
    routing_scores: Array
    right: Flags
    asked: Flags
    features: Array


@dataclass(frozen=True)
class QualityGate:
    """Bounds that a set of pictures has to keep: shares of vanilla's scores and of what is right of each attribute, at
    least; and a Fréchet distance from vanilla's pictures of at most so much of what lies between vanilla's own of two
    seeds (`seeds_share`), or beyond that at most so much of what all-light has beyond it (`light_share`)."""

    score: float
    attribute: float = 0.95
    seeds_share: float | None = None
    light_share: float | None = None


LATENTS_GATE = QualityGate(0.95, seeds_share=1.0)
IMAGES_GATE = QualityGate(0.98, light_share=0.5)
BOTH_GATE = QualityGate(0.95, light_share=0.5)


def attribute_pairs(
    ours: JudgedPictures, vanilla: JudgedPictures, columns: Mapping[str, Sequence[int]]
) -> dict[str, list[tuple[int, int]]]:
    """Return, for each attribute that is asked for at all, a pair a request that asks for it: how many of its kind are
    right in our picture, and how many in vanilla's."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, chosen in columns.items():
        rows = np.flatnonzero(ours.asked[:, chosen].any(axis=1))
        counts = zip(ours.right[rows][:, chosen].sum(axis=1), vanilla.right[rows][:, chosen].sum(axis=1), strict=True)
        if len(rows):
            found[name] = [(int(own), int(theirs)) for own, theirs in counts]
    return found


@dataclass(frozen=True)
class FeatureSpace:
    """Directions (d, k) of features about their mean (d,)."""

    mean: Array
    directions: Array

    @classmethod
    def of(cls, features: Array, count: int = DIRECTIONS_COUNT) -> "FeatureSpace":
        """Return the `count` directions in which the features (n, d) vary most."""
        mean = features.mean(axis=0)
        _, _, directions = np.linalg.svd(features - mean, full_matrices=False)
        return cls(mean, directions[:count].T)

    def distance(self, ours: Array, theirs: Array) -> float:
        """Return the Fréchet distance of two sets of features (n, d), within these directions."""
        return frechet_distance((ours - self.mean) @ self.directions, (theirs - self.mean) @ self.directions)


def frechet_distance(ours: Array, theirs: Array) -> float:
    """Return |m − m'|² + tr(C + C' − 2 (C C')^½) of two sets of vectors (n, k), as if each were normal."""
    apart = ours.mean(axis=0) - theirs.mean(axis=0)
    own, other = (np.cov(vectors, rowvar=False) for vectors in (ours, theirs))
    values, vectors = np.linalg.eigh(own)
    root = vectors * np.sqrt(np.clip(values, 0.0, None)) @ vectors.T
    # The eigenvalues of C^½ C' C^½ are those of C C', and it is symmetric.
    mixed = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other @ root), 0.0, None)).sum()
    return float(max(apart @ apart + np.trace(own) + np.trace(other) - 2.0 * mixed, 0.0))


@dataclass(frozen=True)
class Distances:
    """Fréchet distances from vanilla's pictures: of ours, of vanilla's with other seeds, of the light model's."""

    ours: float
    seeds: float
    light: float

    @property
    def of_seeds(self) -> float:
        """Return ours as a share of what lies between vanilla's own seeds."""
        return self.ours / self.seeds

    @property
    def of_light(self) -> float | None:
        """Return what ours has beyond the seeds as a share of what the light model has beyond them; None where the
        light model has nothing."""
        excess = self.light - self.seeds
        return max(self.ours - self.seeds, 0.0) / excess if excess > 0 else None
