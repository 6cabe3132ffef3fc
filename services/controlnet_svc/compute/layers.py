"""List residuals in the order of sending."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals


@dataclass(frozen=True)
class ResidualLayer:
    """Describe one tensor of every answer: its name in bindings, and its dims."""

    layer: str
    dims: tuple[int, ...]


def named_tensors(residuals: ControlResiduals) -> Sequence[tuple[str, Tensor]]:
    """Return residuals by name: the down blocks, shallow to deep, the mid block, a transformer's blocks."""
    mid = residuals.mid_block_residual
    return (
        *((f"down_block_{index}", tensor) for index, tensor in enumerate(residuals.down_block_residuals)),
        *((("mid_block", mid),) if mid is not None else ()),
        *((f"block_{index}", tensor) for index, tensor in enumerate(residuals.block_residuals)),
    )


def are_of(residuals: ControlResiduals, layers: Sequence[ResidualLayer]) -> bool:
    """Return whether residuals have exactly these layers, or the first ones while others are in flight."""
    named = named_tensors(residuals)
    return len(named) + residuals.awaited_count == len(layers) and all(
        name == layer.layer and tensor.shape == layer.dims for (name, tensor), layer in zip(named, layers, strict=False)
    )


def layers_of(residuals: ControlResiduals) -> tuple[ResidualLayer, ...]:
    """Return names and dims of residuals."""
    return tuple(ResidualLayer(name, tuple(tensor.shape)) for name, tensor in named_tensors(residuals))
