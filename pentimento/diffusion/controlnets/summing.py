"""Scale and add residuals in diffusers' order of operations."""

from collections.abc import Sequence

from torch import Tensor

from pentimento.diffusion.controlnets.setting import ControlSetting
from pentimento.diffusion.families.model import NO_CONTROL, ControlResiduals


def scaled(residuals: ControlResiduals, setting: ControlSetting) -> ControlResiduals:
    """Return residuals times the setting's scale."""
    mid = residuals.mid_block_residual
    return ControlResiduals(
        tuple(part * setting.scale for part in residuals.down_block_residuals),
        None if mid is None else mid * setting.scale,
        tuple(part * setting.scale for part in residuals.block_residuals),
    )


def summed(parts: Sequence[ControlResiduals]) -> ControlResiduals:
    """Return the sum of several ControlNets' residuals, first to last, over the blocks that all have computed so far.
    Parts without residuals at this step are skipped; NO_CONTROL if all are. Raises ValueError if the parts are for
    different blocks."""
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
