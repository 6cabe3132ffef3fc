"""The kernels, in Triton. Sums and activations are taken in single precision whatever the tensors hold, and rounded
once, at the end."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of a program of the kernels that only move and map; a power of two.
_BLOCK = 4096
_HALF_ROOT = tl.constexpr(0.7071067811865476)


@triton.jit  # type: ignore[untyped-decorator]
def _moments(inputs, means, deviations, group_size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write mean and sum of squared deviations of one part of a group."""
    group, part = tl.program_id(0), tl.program_id(1)
    places = part * BLOCK + tl.arange(0, BLOCK)
    inside = places < group_size
    values = tl.load(inputs + group.to(tl.int64) * group_size + places, mask=inside, other=0.0).to(tl.float32)
    count = tl.minimum(group_size - part * BLOCK, BLOCK).to(tl.float32)
    mean = tl.sum(values, axis=0) / count
    difference = tl.where(inside, values - mean, 0.0)
    at = group * tl.num_programs(1) + part
    tl.store(means + at, mean)
    tl.store(deviations + at, tl.sum(difference * difference, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    inputs,
    outputs,
    weight,
    bias,
    means,
    deviations,
    epsilon,
    group_size,
    pixel_count,
    group_count,
    part_count,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write SiLU of one part of a group, normalised by what all its parts have found (Chan et al. 1983)."""
    group, part = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, PARTS)
    known = index < part_count
    counts = tl.where(known, tl.minimum(group_size - index * BLOCK, BLOCK), 0).to(tl.float32)
    part_means = tl.load(means + group * part_count + index, mask=known, other=0.0)
    part_deviations = tl.load(deviations + group * part_count + index, mask=known, other=0.0)
    mean = tl.sum(counts * part_means, axis=0) / group_size
    apart = part_means - mean
    variance = tl.sum(part_deviations + counts * apart * apart, axis=0) / group_size

    places = part * BLOCK + tl.arange(0, BLOCK)
    inside = places < group_size
    start = group.to(tl.int64) * group_size
    values = tl.load(inputs + start + places, mask=inside, other=0.0).to(tl.float32)
    channels = (group % group_count) * (group_size // pixel_count) + places // pixel_count
    scale = tl.load(weight + channels, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + channels, mask=inside, other=0.0).to(tl.float32)
    normal = (values - mean) / tl.sqrt(variance + epsilon) * scale + shift
    tl.store(outputs + start + places, (normal * tl.sigmoid(normal)).to(outputs.dtype.element_ty), mask=inside)


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


@triton.jit  # type: ignore[untyped-decorator]
def _product_gate(  # type: ignore[no-untyped-def]
    inputs,
    weight,
    bias,
    outputs,
    row_count,
    width,
    depth,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write one tile of GEGLU of inputs @ weight.T + bias; the projection itself is never written."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row_inside, column_inside = rows < row_count, columns < width
    values = tl.zeros((ROWS, COLUMNS), tl.float32)
    gates = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, depth, DEPTH):
        along = begin + tl.arange(0, DEPTH)
        along_inside = along < depth
        left = tl.load(
            inputs + rows[:, None] * depth + along[None, :],
            mask=row_inside[:, None] & along_inside[None, :],
            other=0.0,
        )
        right = weight + columns[None, :] * depth + along[:, None]
        right_inside = column_inside[None, :] & along_inside[:, None]
        for_values = tl.load(right, mask=right_inside, other=0.0)
        for_gates = tl.load(right + width * depth, mask=right_inside, other=0.0)
        values = tl.dot(left, for_values, values, input_precision="ieee")
        gates = tl.dot(left, for_gates, gates, input_precision="ieee")
    values += tl.load(bias + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    gates += tl.load(bias + width + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    tile = outputs + rows[:, None] * width + columns[None, :]
    inside = row_inside[:, None] & column_inside[None, :]
    tl.store(tile, (values * _gelu(gates)).to(outputs.dtype.element_ty), mask=inside)


def group_norm_silu(inputs: Tensor, weight: Tensor, bias: Tensor, group_count: int, epsilon: float) -> Tensor:
    """Return SiLU of the normalised inputs (rows, channels, height, width), which must be contiguous."""
    rows, channels, height, width = inputs.shape
    groups, group_size = rows * group_count, channels // group_count * height * width
    part_count = triton.cdiv(group_size, _BLOCK)
    means = torch.empty((2, groups, part_count), dtype=torch.float32, device=inputs.device)
    outputs = torch.empty_like(inputs)
    grid = (groups, part_count)
    _moments[grid](inputs, means[0], means[1], group_size, BLOCK=_BLOCK)
    sizes: dict[str, Any] = {"PARTS": max(triton.next_power_of_2(part_count), 2), "BLOCK": _BLOCK}
    shape = (epsilon, group_size, height * width, group_count, part_count)
    _normalise[grid](inputs, outputs, weight, bias, means[0], means[1], *shape, **sizes)
    return outputs


def geglu(projected: Tensor) -> Tensor:
    """Return values * GELU(gates) (..., width) of a projection (..., 2 * width)."""
    projected = projected.contiguous()
    width = projected.shape[-1] // 2
    outputs = projected.new_empty((*projected.shape[:-1], width))
    _gate[(triton.cdiv(outputs.numel(), _BLOCK),)](projected, outputs, width, outputs.numel(), BLOCK=_BLOCK)
    return outputs


def projected_geglu(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GEGLU (..., width) of what weight (2 * width, inputs) and a bias make of inputs (..., inputs)."""
    inputs, width = inputs.contiguous(), weight.shape[0] // 2
    outputs = inputs.new_empty((*inputs.shape[:-1], width))
    row_count, depth = outputs.numel() // width, inputs.shape[-1]
    tile = {"ROWS": 128, "COLUMNS": 64, "DEPTH": 32}
    grid = (triton.cdiv(row_count, tile["ROWS"]), triton.cdiv(width, tile["COLUMNS"]))
    _product_gate[grid](inputs, weight, bias, outputs, row_count, width, depth, **tile, num_warps=8, num_stages=3)
    return outputs
