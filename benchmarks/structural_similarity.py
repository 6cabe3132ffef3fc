"""Compute the structural similarity of two images' luminance: SSIM (Wang et al. 2004)."""

import torch
from torch import Tensor
from torch.nn import functional

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
