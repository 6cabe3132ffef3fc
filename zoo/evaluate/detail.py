"""Measure images' fine detail: the distance of an image's patches from those of a reference image.

The sliced Wasserstein distance of Karras et al. 2018 (Progressive Growing of GANs, section 5), one image at a time so
that comparisons stay paired: patches of 7 by 7 pixels from a level of a Laplacian pyramid, compared along random
directions. It sees differences that an attribute scorer does not: a shape may be right and its outline soft.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zoo.drawing.dataset import as_pixels
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.evaluate.estimates import Array

LEVELS_PX = (IMAGE_SIZE, IMAGE_SIZE // 2, IMAGE_SIZE // 4)  # edges and fills first, shapes last
SIDE_PX = 7
DIRECTIONS = 32
BATCH = 64
SEED = 7


def patch_distance(images: Tensor, reference: Tensor, level_px: int) -> Array:
    """Return the distances of uint8 images (prompts, seeds, 3, height, width) from the reference's, which may have one
    for all seeds.

    The result is (prompts, seeds), in units of pixels in -1..1; `level_px` is the side of the pyramid's level.
    """
    whole = reference.expand(-1, images.shape[1], -1, -1, -1)
    batches = zip(images.flatten(0, 1).split(BATCH), whole.flatten(0, 1).split(BATCH), strict=True)
    found = [_distance(_sorted_patches(ours, level_px), _sorted_patches(own, level_px)) for ours, own in batches]
    distances: Array = torch.cat(found).view(images.shape[:2]).double().numpy()
    return distances


def fine_detail(images: Tensor, reference: Tensor) -> Array:
    """Return the mean of `patch_distance` over the two finest levels."""
    distances: Array = np.mean([patch_distance(images, reference, level) for level in LEVELS_PX[:2]], axis=0)
    return distances


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs).abs().mean(dim=(1, 2))


def _sorted_patches(images: Tensor, level_px: int) -> Tensor:
    """Return every patch along each direction, in ascending order: (n, patches, DIRECTIONS)."""
    pixels = as_pixels(images)
    while pixels.shape[-1] > level_px:
        pixels = functional.avg_pool2d(pixels, 2)
    coarse = functional.interpolate(functional.avg_pool2d(pixels, 2), scale_factor=2, mode="bilinear")
    patches = functional.unfold(pixels - coarse, SIDE_PX).mT
    generator = torch.Generator().manual_seed(SEED)
    directions = functional.normalize(torch.randn(patches.shape[-1], DIRECTIONS, generator=generator), dim=0)
    return (patches @ directions).sort(dim=1).values
