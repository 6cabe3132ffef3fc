"""Compute distances of images: Fréchet between Gaussians over features (Heusel et al. 2017), and SSIM."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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


# Section III-C: a Gaussian window of 11 pixels, and constants for values in 0..1.
_WINDOW_PX, _SIGMA_PX = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2
_LUMINANCE = (0.299, 0.587, 0.114)


def structural_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Return SSIM (n,), at most 1, of images (n, 3, height, width) in 0..1, of at least 11 pixels a side."""
    one, other = (_luminance(images) for images in (first, second))
    mean_one, mean_other = _blurred(one), _blurred(other)
    variance_one = _blurred(one * one) - mean_one**2
    variance_other = _blurred(other * other) - mean_other**2
    covariance = _blurred(one * other) - mean_one * mean_other
    likeness = (2 * mean_one * mean_other + _C1) * (2 * covariance + _C2)
    found = likeness / ((mean_one**2 + mean_other**2 + _C1) * (variance_one + variance_other + _C2))
    return found.flatten(1).mean(dim=1)


def _luminance(images: Tensor) -> Tensor:
    weights = torch.tensor(_LUMINANCE, dtype=torch.float64).view(1, 3, 1, 1)
    return (images.double() * weights).sum(dim=1, keepdim=True)


def _blurred(values: Tensor) -> Tensor:
    """Blur without the border, where the window exceeds the image."""
    places = torch.arange(_WINDOW_PX, dtype=torch.float64) - _WINDOW_PX // 2
    line = torch.exp(-(places**2) / (2 * _SIGMA_PX**2))
    line = line / line.sum()
    across = functional.conv2d(values, line.view(1, 1, 1, -1))
    return functional.conv2d(across, line.view(1, 1, -1, 1))
