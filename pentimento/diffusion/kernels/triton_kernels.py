"""Implement the kernels in Triton.

Sums and activations are in single precision for every type of tensor, and rounded once, at the end. Feature maps are
channels last: the values of a pixel are adjacent.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements per program of the elementwise kernels; a power of two.
_BLOCK = 4096
# Tile of a normalisation program, powers of two; more pixels for large feature maps, as an autoencoder has them, so
# that few parts need merging.
_PIXELS, _MANY_PIXELS = 64, 256
_MOST_PARTS = 1024
_CHANNELS = 64
_HALF_ROOT = tl.constexpr(0.7071067811865476)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(pixel_count, channel_count, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the program's channels and their mask, the start of its row, the offsets of its tile from there, and their
    mask."""
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channels < channel_count
    inside = (pixels < pixel_count)[:, None] & is_channel[None, :]
    start = tl.program_id(2).to(tl.int64) * pixel_count * channel_count
    return channels, is_channel, start, pixels[:, None] * channel_count + channels[None, :], inside


@triton.jit  # type: ignore[untyped-decorator]
def _part(  # type: ignore[no-untyped-def]
    first,
    group,
    row,
    pixel_count,
    channel_count,
    part_count,
    group_channels,
    PARTS: tl.constexpr,
    MEMBERS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Return the offsets in the moments of a group's parts from `first` on, the pixel count (PARTS, 1) of each part,
    and the mask of these offsets."""
    parts, members = first + tl.arange(0, PARTS), tl.arange(0, MEMBERS)
    known = (parts < part_count)[:, None] & (members < group_channels)[None, :]
    counts = tl.minimum(pixel_count - parts * PIXELS, PIXELS).to(tl.float32)
    at = (row * part_count + parts)[:, None] * channel_count + (group * group_channels + members)[None, :]
    return at, counts[:, None], known


@triton.jit  # type: ignore[untyped-decorator]
def _moments(  # type: ignore[no-untyped-def]
    inputs,
    shifts,
    means,
    deviations,
    pixel_count,
    channel_count,
    part_count,
    SHIFTED: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write mean and sum of squared deviations of each channel of one part of a row's pixels."""
    part, row = tl.program_id(0), tl.program_id(2)
    channels, is_channel, start, places, inside = _tile(pixel_count, channel_count, PIXELS, CHANNELS)
    values = tl.load(inputs + start + places, mask=inside, other=0.0).to(tl.float32)
    count = tl.minimum(pixel_count - part * PIXELS, PIXELS).to(tl.float32)
    mean = tl.sum(values, axis=0) / count
    difference = tl.where(inside, values - mean[None, :], 0.0)
    if SHIFTED:
        mean += tl.load(shifts + row * channel_count + channels, mask=is_channel, other=0.0).to(tl.float32)
    at = (row * part_count + part) * channel_count + channels
    tl.store(means + at, mean, mask=is_channel)
    tl.store(deviations + at, tl.sum(difference * difference, axis=0), mask=is_channel)


@triton.jit  # type: ignore[untyped-decorator]
def _merged(  # type: ignore[no-untyped-def]
    means,
    deviations,
    group_means,
    group_scales,
    epsilon,
    pixel_count,
    channel_count,
    part_count,
    group_channels,
    PARTS: tl.constexpr,
    MEMBERS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write mean and 1 / deviation of one group of a row, from the moments of its parts (Chan et al. 1983)."""
    group, row = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((MEMBERS,), tl.float32)
    for first in range(0, part_count, PARTS):
        at, counts, known = _part(
            first, group, row, pixel_count, channel_count, part_count, group_channels, PARTS, MEMBERS, PIXELS
        )
        total += tl.sum(counts * tl.load(means + at, mask=known, other=0.0), axis=0)
    mean = tl.sum(total, axis=0) / (pixel_count * group_channels)
    squares = tl.zeros((MEMBERS,), tl.float32)
    for first in range(0, part_count, PARTS):
        at, counts, known = _part(
            first, group, row, pixel_count, channel_count, part_count, group_channels, PARTS, MEMBERS, PIXELS
        )
        apart = tl.where(known, tl.load(means + at, mask=known, other=0.0) - mean, 0.0)
        within = tl.load(deviations + at, mask=known, other=0.0)
        squares += tl.sum(within + counts * apart * apart, axis=0)
    variance = tl.sum(squares, axis=0) / (pixel_count * group_channels)
    at = row * tl.num_programs(0) + group
    tl.store(group_means + at, mean)
    tl.store(group_scales + at, 1.0 / tl.sqrt(variance + epsilon))


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    inputs,
    outputs,
    shifts,
    weight,
    bias,
    group_means,
    group_scales,
    pixel_count,
    channel_count,
    group_channels,
    group_count,
    SHIFTED: tl.constexpr,
    ACTIVATED: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write one tile of the normalised feature maps, with SiLU if `ACTIVATED`."""
    row = tl.program_id(2)
    channels, is_channel, start, places, inside = _tile(pixel_count, channel_count, PIXELS, CHANNELS)
    group = row * group_count + channels // group_channels
    scale = tl.load(group_scales + group, mask=is_channel, other=0.0)
    centre = tl.load(group_means + group, mask=is_channel, other=0.0)
    if SHIFTED:
        centre -= tl.load(shifts + row * channel_count + channels, mask=is_channel, other=0.0).to(tl.float32)
    scale *= tl.load(weight + channels, mask=is_channel, other=0.0).to(tl.float32)
    offset = tl.load(bias + channels, mask=is_channel, other=0.0).to(tl.float32)
    values = tl.load(inputs + start + places, mask=inside, other=0.0).to(tl.float32)
    apart = tl.where(inside, values - centre[None, :], 0.0)
    normal = apart * scale[None, :] + offset[None, :]
    if ACTIVATED:
        normal = normal * tl.sigmoid(normal)
    tl.store(outputs + start + places, normal.to(outputs.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _joined(left, right, bias, outputs, width, element_count, BIASED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write BLOCK elements of left + right plus a bias by the last dimension."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < element_count
    values = tl.load(left + places, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(right + places, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        values += tl.load(bias + places % width, mask=inside, other=0.0).to(tl.float32)
    tl.store(outputs + places, values.to(outputs.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _added_normalised(  # type: ignore[no-untyped-def]
    left, right, sums, outputs, weight, bias, epsilon, width, WIDTH: tl.constexpr
):
    """Write one row of left + right, and of its layer normalisation."""
    places = tl.arange(0, WIDTH)
    inside = places < width
    start = tl.program_id(0).to(tl.int64) * width
    values = tl.load(left + start + places, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(right + start + places, mask=inside, other=0.0).to(tl.float32)
    rounded = values.to(sums.dtype.element_ty)
    tl.store(sums + start + places, rounded, mask=inside)
    values = rounded.to(tl.float32)
    mean = tl.sum(values, axis=0) / width
    apart = tl.where(inside, values - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=0) / width + epsilon)
    normal = apart * scale * tl.load(weight + places, mask=inside, other=0.0).to(tl.float32)
    normal += tl.load(bias + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(outputs + start + places, normal.to(outputs.dtype.element_ty), mask=inside)


@triton.jit
def _gelu(gates):  # type: ignore[no-untyped-def]
    return 0.5 * gates * (1.0 + tl.erf(gates * _HALF_ROOT))


@triton.jit  # type: ignore[untyped-decorator]
def _gate(projected, outputs, width, element_count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write BLOCK elements of values * GELU(gates), counted over all rows."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < element_count
    # A row of the projection is twice as wide: values, then gates.
    at = projected + (places // width).to(tl.int64) * width + places
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    gates = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(outputs + places, (values * _gelu(gates)).to(outputs.dtype.element_ty), mask=inside)


def group_norm(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    group_count: int,
    epsilon: float,
    *,
    shifts: Tensor | None = None,
    activated: bool = False,
) -> Tensor:
    """Return normalised inputs (rows, channels, height, width), which must be channels last, as the result is."""
    rows, channels, height, width = inputs.shape
    pixels, group_channels = height * width, channels // group_count
    at_once = _PIXELS if pixels <= _MOST_PARTS * _PIXELS else _MANY_PIXELS
    parts = triton.cdiv(pixels, at_once)
    found = torch.empty((2, rows, parts, channels), dtype=torch.float32, device=inputs.device)
    merged = torch.empty((2, rows, group_count), dtype=torch.float32, device=inputs.device)
    outputs = torch.empty_like(inputs)
    shifted = shifts is not None
    given = inputs if shifts is None else shifts.contiguous()
    grid = (parts, triton.cdiv(channels, _CHANNELS), rows)
    tile: dict[str, Any] = {"PIXELS": at_once, "CHANNELS": _CHANNELS, "num_warps": 4 if at_once == _PIXELS else 8}
    _moments[grid](inputs, given, found[0], found[1], pixels, channels, parts, SHIFTED=shifted, **tile)
    sizes: dict[str, Any] = {
        "PARTS": min(max(triton.next_power_of_2(parts), 2), 64),
        "MEMBERS": max(triton.next_power_of_2(group_channels), 2),
        "PIXELS": at_once,
    }
    counts = (pixels, channels, parts, group_channels)
    _merged[(group_count, rows)](found[0], found[1], merged[0], merged[1], epsilon, *counts, **sizes)
    shape = (pixels, channels, group_channels, group_count)
    options = {"SHIFTED": shifted, "ACTIVATED": activated}
    _normalise[grid](inputs, outputs, given, weight, bias, merged[0], merged[1], *shape, **options, **tile)
    return outputs


def join(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """Return left + right, both in one channels-last layout, plus a bias (channels,)."""
    outputs, width = torch.empty_like(left), left.shape[1]
    given = left if bias is None else bias
    grid = (triton.cdiv(left.numel(), _BLOCK),)
    _joined[grid](left, right, given, outputs, width, left.numel(), BIASED=bias is not None, BLOCK=_BLOCK)
    return outputs


def add_layer_norm(left: Tensor, right: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return left + right (..., width), both contiguous, and its layer normalisation."""
    sums, outputs, width = torch.empty_like(left), torch.empty_like(left), left.shape[-1]
    size = triton.next_power_of_2(width)
    grid = (left.numel() // width,)
    _added_normalised[grid](left, right, sums, outputs, weight, bias, epsilon, width, WIDTH=size)
    return sums, outputs


def geglu(projected: Tensor) -> Tensor:
    """Return values * GELU(gates) (..., width) of a projection (..., 2 * width)."""
    projected = projected.contiguous()
    width = projected.shape[-1] // 2
    outputs = projected.new_empty((*projected.shape[:-1], width))
    _gate[(triton.cdiv(outputs.numel(), _BLOCK),)](projected, outputs, width, outputs.numel(), BLOCK=_BLOCK)
    return outputs
