"""Compare images from reuse with those of the heavy model from scratch, and test them against the quality gate.

Everything is arithmetic over scores: rows are requests, the same ones in the same order for every set. The Fréchet
distance is FID's (Heusel et al. 2017) over another network's features. With a few hundred images it uses projections
onto the directions of vanilla's largest variance, since so few cannot estimate a covariance of more features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DIRECTIONS_COUNT = 32


@dataclass(frozen=True)
class ScoredImages:
    """Hold the scores of a set of images.

    `scores` (n,): cosines of image and prompt by an encoder that neither routes nor was trained with the router's;
    `routing_scores` (n,): the same by the encoder that the cache searches by; `right` and `asked` (n, attributes):
    correct and requested attributes; `features` (n, d): the attribute scorer's.
    """

    scores: Array
    routing_scores: Array
    right: Flags
    asked: Flags
    features: Array


@dataclass(frozen=True)
class QualityGate:
    """Bound a set of images: minimum shares of vanilla's scores and correct attributes, and a maximum Fréchet distance.

    The distance from vanilla's images is at most `seeds_share` of the distance between vanilla's seeds, or exceeds that
    by at most `light_share` of all-light's excess over it.
    """

    score: float
    attribute: float = 0.95
    seeds_share: float | None = None
    light_share: float | None = None


LATENTS_GATE = QualityGate(0.95, seeds_share=1.0)
IMAGES_GATE = QualityGate(0.98, light_share=0.5)
BOTH_GATE = QualityGate(0.95, light_share=0.5)


def attribute_pairs(
    ours: ScoredImages, vanilla: ScoredImages, columns: Mapping[str, Sequence[int]]
) -> dict[str, list[tuple[int, int]]]:
    """Return, for each requested attribute, a pair per request: how many of its kind are right in our image, and in
    vanilla's."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, chosen in columns.items():
        rows = np.flatnonzero(ours.asked[:, chosen].any(axis=1))
        counts = zip(ours.right[rows][:, chosen].sum(axis=1), vanilla.right[rows][:, chosen].sum(axis=1), strict=True)
        if len(rows):
            found[name] = [(int(own), int(theirs)) for own, theirs in counts]
    return found


@dataclass(frozen=True)
class FeatureSpace:
    """Hold directions (d, k) of features about their mean (d,)."""

    mean: Array
    directions: Array

    @classmethod
    def of(cls, features: Array, count: int = DIRECTIONS_COUNT) -> "FeatureSpace":
        """Return the `count` directions of the features' (n, d) largest variance."""
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
    """Hold Fréchet distances from vanilla's images: our images', vanilla's with other seeds, the light model's."""

    ours: float
    seeds: float
    light: float

    @property
    def of_seeds(self) -> float:
        """Return ours as a share of the distance between vanilla's seeds."""
        return self.ours / self.seeds

    @property
    def of_light(self) -> float | None:
        """Return our excess over the seeds' distance as a share of the light model's; None if that has none."""
        excess = self.light - self.seeds
        return max(self.ours - self.seeds, 0.0) / excess if excess > 0 else None
