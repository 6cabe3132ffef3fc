"""Compute the kernels' results with torch's operations: their reference, and the fallback if a kernel does not fit."""

from torch import Tensor
from torch.nn import functional


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
    """Return the inputs (rows, channels, height, width) plus `shifts` (rows, channels), normalised by groups of
    channels (Wu and He 2018), with SiLU after that if `activated`."""
    shifted = inputs if shifts is None else inputs + shifts[:, :, None, None]
    normal = functional.group_norm(shifted, group_count, weight, bias, epsilon)
    return functional.silu(normal, inplace=True) if activated else normal


def join(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """Return left + right (rows, channels, height, width) plus a bias (channels,)."""
    return left + right if bias is None else left + (right + bias[:, None, None])


def add_layer_norm(left: Tensor, right: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return left + right (..., width), and its layer normalisation (Ba et al. 2016)."""
    total = left + right
    return total, functional.layer_norm(total, weight.shape, weight, bias, epsilon)


def geglu(projected: Tensor) -> Tensor:
    """Return values * GELU(gates) (..., width) of a projection (..., 2 * width), the values before the gates (Shazeer
    2020)."""
    values, gates = projected.chunk(2, dim=-1)
    return values * functional.gelu(gates)
