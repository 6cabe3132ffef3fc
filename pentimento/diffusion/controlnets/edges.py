"""Find the edges of an image (Canny 1986): the pixels that OpenCV's `Canny` finds with thresholds 100 and 200, which
ControlNets for edges are trained on."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LOW, HIGH = 100, 200
# Slopes are compared in fixed point, as OpenCV does: a tangent of 22.5 degrees, and 1, with 15 binary places.
_PLACES = 15
_TAN_22 = 13573
Levels = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]


def edges(pixels: Tensor) -> Tensor:
    """Return the edges of pixels (1, 3, height, width) in 0..1 as an image of that shape: 1 on an edge, else 0."""
    levels = (pixels[0] * 255.0).round().to(torch.int16).cpu().numpy()
    found = torch.from_numpy(_canny(levels)).to(pixels.dtype)
    return found.expand(pixels.shape).contiguous()


def _canny(levels: Levels) -> Mask:
    along_x, along_y = _gradient(levels)
    strength = np.abs(along_x) + np.abs(along_y)
    thin = _is_ridge(along_x, along_y, strength) & (strength > LOW)
    return _reached(thin, thin & (strength > HIGH))


def _gradient(levels: Levels) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return Sobel's derivatives along x and y of levels (channels, height, width): at each pixel those of the channel
    where they are largest."""
    padded = np.pad(levels, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    along_x = rows[:, :, 2:] - rows[:, :, :-2]
    columns = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    along_y = columns[:, 2:] - columns[:, :-2]
    channel = np.argmax(np.abs(along_x) + np.abs(along_y), axis=0)[None]
    chosen = (np.take_along_axis(part, channel, axis=0)[0].astype(np.int32) for part in (along_x, along_y))
    return next(chosen), next(chosen)


def _is_ridge(along_x: npt.NDArray[Any], along_y: npt.NDArray[Any], strength: npt.NDArray[Any]) -> Mask:
    """Return where the gradient is stronger than at both neighbours in its direction, rounded to 45 degrees. Of two
    equal neighbours on a line the first counts."""
    height, width = strength.shape
    padded = np.pad(strength, 1)

    def beside(down: int, right: int) -> npt.NDArray[Any]:
        return padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]

    rise, run = np.abs(along_y) << _PLACES, np.abs(along_x)
    flat = rise < run * _TAN_22
    steep = rise > run * (_TAN_22 + (2 << _PLACES))
    falls = (along_x ^ along_y) < 0
    before = np.where(falls, beside(-1, 1), beside(-1, -1))
    after = np.where(falls, beside(1, -1), beside(1, 1))
    diagonal = (strength > before) & (strength > after)
    across = (strength > beside(0, -1)) & (strength >= beside(0, 1))
    upright = (strength > beside(-1, 0)) & (strength >= beside(1, 0))
    return np.where(flat, across, np.where(steep, upright, diagonal))


def _reached(thin: Mask, seeds: Mask) -> Mask:
    """Return the pixels of `thin` that touching ones (eight neighbours) connect with a seed.

    Each pixel points to one of its group with a smaller number; pointers are joined over touching pixels and shortened
    until nothing changes. That takes few rounds for paths of any length.
    """
    count = int(thin.sum())
    numbers = np.full((thin.shape[0] + 1, thin.shape[1] + 2), -1)
    numbers[:-1, 1:-1][thin] = np.arange(count)
    here = numbers[:-1, 1:-1]
    touching = (numbers[:-1, 2:], numbers[1:, :-2], numbers[1:, 1:-1], numbers[1:, 2:])
    both = [(here >= 0) & (there >= 0) for there in touching]
    first = np.concatenate([here[mask] for mask in both])
    second = np.concatenate([there[mask] for there, mask in zip(touching, both, strict=True)])
    group = np.arange(count)
    while True:
        least = np.minimum(group[first], group[second])
        joined = group.copy()
        np.minimum.at(joined, group[first], least)
        np.minimum.at(joined, group[second], least)
        joined = joined[joined]
        if np.array_equal(joined, group):
            break
        group = joined
    seeded = np.zeros(count, dtype=bool)
    seeded[group[seeds[thin]]] = True
    found = np.zeros_like(thin)
    found[thin] = seeded[group]
    return found
