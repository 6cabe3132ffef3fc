"""Compute the Fréchet distance between Gaussians over the features of two sets of images (Heusel et al. 2017): FID,
with any network's features.
"""

from dataclasses import dataclass

import numpy as np

from zoo.evaluate.estimates import Array


@dataclass(frozen=True)
class Moments:
    """Hold mean (d,) and covariance (d, d)."""

    mean: Array
    covariance: Array


def moments(features: Array, weights: Array | None = None) -> Moments:
    """Return the moments of features (n, d), weighted by `weights` (n,) if given."""
    counted = np.ones(len(features)) if weights is None else weights
    total = counted.sum()
    mean = counted @ features / total
    covariance = (features * counted[:, None]).T @ features / total - np.outer(mean, mean)
    return Moments(mean, covariance)


class FrechetReference:
    """Hold the reference: features (n, d) of real images, projected to the `width` directions of largest variance."""

    def __init__(self, features: Array, width: int = 64) -> None:
        _, vectors = np.linalg.eigh(moments(features).covariance)
        self._directions = vectors[:, ::-1][:, :width]
        self._reference = moments(self.project(features))
        values, vectors = np.linalg.eigh(self._reference.covariance)
        self._root = (vectors * np.sqrt(values.clip(min=0.0))) @ vectors.T

    def project(self, features: Array) -> Array:
        """Return features (n, d) in the projected directions."""
        found: Array = features @ self._directions
        return found

    def distance(self, found: Moments) -> float:
        """Return the squared distance of projected features' moments: 0 for the reference's own."""
        between = np.linalg.eigvalsh(self._root @ found.covariance @ self._root)
        apart = found.mean - self._reference.mean
        traces = np.trace(found.covariance) + np.trace(self._reference.covariance)
        return float(apart @ apart + traces - 2.0 * np.sqrt(between.clip(min=0.0)).sum())
