"""Prevent parts from learning pixels by heart: add noise or blur to images (n, 3, h, w), each to its own degree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def noisy(pixels: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of a standard deviation between 0 and `most`."""
    strength = most * torch.rand((len(pixels), 1, 1, 1), generator=generator)
    return pixels + strength * torch.randn(pixels.shape, generator=generator)


def softened(pixels: Tensor, degree: Tensor) -> Tensor:
    """Interpolate between the images (degree 0) and their means of 3 by 3 pixels (1); `degree` is (n, 1, 1, 1)."""
    return pixels.lerp(functional.avg_pool2d(pixels, 3, 1, 1, count_include_pad=False), degree)
