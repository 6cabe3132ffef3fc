"""Residuals scaled and put together in diffusers' order of operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pentimento.diffusion.controlnets.setting import ControlSetting
from pentimento.diffusion.families.model import NO_CONTROL, ControlResiduals


def scaled(residuals: ControlResiduals, setting: ControlSetting) -> ControlResiduals:
    """Return residuals times the setting's scale. Conditional only, those of a UNet rise from a tenth of it at the
    shallowest to all of it at the mid block."""
    down, mid = residuals.down_block_residuals, residuals.mid_block_residual
    blocks = tuple(part * setting.scale for part in residuals.block_residuals)
    if mid is None or not setting.conditional_only:
        scaled_mid = None if mid is None else mid * setting.scale
        return ControlResiduals(tuple(part * setting.scale for part in down), scaled_mid, blocks)
    scales = torch.logspace(-1, 0, len(down) + 1, device=mid.device) * setting.scale
    rising = tuple(part * scale for part, scale in zip(down, scales, strict=False))
    return ControlResiduals(rising, mid * scales[-1], blocks)


def with_unconditional_rows(residuals: ControlResiduals) -> ControlResiduals:
    """Return as many rows of zeros before those of the conditional half."""
    down, mid = residuals.down_block_residuals, residuals.mid_block_residual
    return ControlResiduals(
        tuple(_after_zeros(part) for part in down),
        None if mid is None else _after_zeros(mid),
        tuple(_after_zeros(part) for part in residuals.block_residuals),
    )


def _after_zeros(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rows), rows])


def summed(parts: Sequence[ControlResiduals]) -> ControlResiduals:
    """Return the sum of several ControlNets' residuals, first to last, of the blocks that all of them have some for by
    now; those that control nothing at this step are left out. NO_CONTROL where none is left. Raises ValueError when
    they are for different blocks."""
    acting = [part for part in parts if part.tensors]
    if not acting:
        return NO_CONTROL
    total = acting[0]
    for part in acting[1:]:
        total = _added(total, part)
    return total


def _added(first: ControlResiduals, second: ControlResiduals) -> ControlResiduals:
    mids = (first.mid_block_residual, second.mid_block_residual)
    if (mids[0] is None) != (mids[1] is None):
        raise ValueError("residuals with and without a mid block's")
    _check_same(len(first.down_block_residuals), len(second.down_block_residuals))
    _check_same(first.block_count, second.block_count)
    return ControlResiduals(
        _sums(first.down_block_residuals, second.down_block_residuals),
        None if mids[0] is None or mids[1] is None else mids[0] + mids[1],
        _sums(first.block_residuals, second.block_residuals),
        max(first.awaited_count, second.awaited_count),
    )


def _check_same(first: int, second: int) -> None:
    if first != second:
        raise ValueError(f"residuals of {first} and of {second} blocks")


def _sums(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(one + other for one, other in zip(first, second, strict=False))
