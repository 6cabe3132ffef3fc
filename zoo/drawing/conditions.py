"""Make ControlNets' conditions from an image or from a scene, and measure how well an image follows them.

Edges are the thin binary outline of everything in an image. A layout is a coarse depth map of its objects, a ball each:
their places and sizes, not their shapes or colours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from zoo.drawing.scenes import IMAGE_SIZE, SIZES, Scene

EDGE_THRESHOLD = 0.14
MOST_THINGS = 3


def edges(images: Tensor) -> Tensor:
    """Return edges (n, 1, h, w), 0 or 1, of images (n, 3, h, w) in 0..1.

    An edge is a place where the colour changes by more than the threshold a pixel (Sobel over all channels) and more
    than at both neighbours across the edge.
    """
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    down_smooth = padded[:, :, :-2] + 2.0 * padded[:, :, 1:-1] + padded[:, :, 2:]
    across_smooth = padded[..., :-2] + 2.0 * padded[..., 1:-1] + padded[..., 2:]
    across_slope = (down_smooth[..., 2:] - down_smooth[..., :-2]).div(8.0).square().sum(dim=1)
    down_slope = (across_smooth[:, :, 2:] - across_smooth[:, :, :-2]).div(8.0).square().sum(dim=1)
    steepness = across_slope + down_slope
    around = functional.pad(steepness, (1, 1, 1, 1))
    left, right, up, down = around[:, 1:-1, :-2], around[:, 1:-1, 2:], around[:, :-2, 1:-1], around[:, 2:, 1:-1]
    ridge_across = (steepness >= left) & (steepness > right)
    ridge_down = (steepness >= up) & (steepness > down)
    ridge = torch.where(across_slope >= down_slope, ridge_across, ridge_down)
    return (ridge & (steepness > EDGE_THRESHOLD**2))[:, None].to(images)


def ball_table(scenes: Sequence[Scene]) -> Tensor:
    """Return middle (x rightwards, y upwards) and radius of each scene's objects (n, MOST_THINGS, 3); a radius of 0 is
    none."""
    table = torch.zeros(len(scenes), MOST_THINGS, 3)
    for row, scene in zip(table, scenes, strict=True):
        for ball, thing in zip(row, scene.things, strict=False):
            ball.copy_(torch.tensor([thing.x, thing.y, SIZES[thing.size]]))
    return table


def layout_of_balls(table: Tensor, size: int = IMAGE_SIZE) -> Tensor:
    """Return a depth map (n, 1, size, size) in 0..1 of balls on a wall; the largest object reaches 1, the wall is 0."""
    axis = (torch.arange(size, device=table.device) + 0.5) / size * 2.0 - 1.0
    x, y, radius = table[..., None, None].unbind(dim=2)
    distance_squared = (axis - x).square() + (-axis[:, None] - y).square()
    heights = (radius.square() - distance_squared).clamp(min=0.0).sqrt()
    return heights.amax(dim=1, keepdim=True) / max(SIZES.values())


def layout(scenes: Sequence[Scene], size: int = IMAGE_SIZE) -> Tensor:
    """Return layouts (n, 1, size, size) in 0..1 of drawn scenes."""
    return layout_of_balls(ball_table(scenes), size)


def as_rgb_condition(condition: Tensor) -> Tensor:
    """Return a condition (n, 1, h, w) in a ControlNet's three channels."""
    return condition.expand(-1, 3, -1, -1)


def edge_f1(found: Tensor, wanted: Tensor, tolerance_px: int = 1, within: Tensor | None = None) -> Tensor:
    """Return F1 of each image's edges (n,), from maps (n, 1, h, w) of 0 and 1; two empty maps agree.

    An edge is right if the other map has one at most `tolerance_px` away, diagonals included. With `within`, a map of
    the same shape, only edges inside it count: backgrounds that captions name have their own edges.
    """
    side = 2 * tolerance_px + 1
    near_wanted, near_found = (functional.max_pool2d(m, side, 1, tolerance_px) for m in (wanted, found))
    if within is not None:
        found, wanted = found * within, wanted * within
    everywhere = (1, 2, 3)
    found_count, wanted_count = found.sum(everywhere), wanted.sum(everywhere)
    precision = (found * near_wanted).sum(everywhere) / found_count.clamp(min=1.0)
    recall = (wanted * near_found).sum(everywhere) / wanted_count.clamp(min=1.0)
    f1 = 2.0 * precision * recall / (precision + recall).clamp(min=1e-9)
    return torch.where((found_count == 0) & (wanted_count == 0), 1.0, f1)


def place_iou(found: Tensor, wanted: Tensor) -> Tensor:
    """Return intersection over union (n,) of coverage (n, h, w), in 0..1 and cut at a half; two empty maps agree."""
    first, second = found > 0.5, wanted > 0.5
    union = (first | second).sum(dim=(1, 2))
    return torch.where(union == 0, 1.0, (first & second).sum(dim=(1, 2)) / union.clamp(min=1))
