"""What the kernels compute, by torch's own operations: their reference, and what runs where a kernel does not fit."""

from torch import Tensor
from torch.nn import functional


def group_norm_silu(inputs: Tensor, weight: Tensor, bias: Tensor, group_count: int, epsilon: float) -> Tensor:
    """Return SiLU of the normalised inputs (rows, channels, height, width) (Wu and He 2018)."""
    return functional.silu(functional.group_norm(inputs, group_count, weight, bias, epsilon), inplace=True)


def geglu(projected: Tensor) -> Tensor:
    """Return values * GELU(gates) (..., width) of a projection (..., 2 * width), the values before the gates (Shazeer
    2020)."""
    values, gates = projected.chunk(2, dim=-1)
    return values * functional.gelu(gates)


def projected_geglu(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GEGLU (..., width) of what weight (2 * width, inputs) and a bias make of inputs (..., inputs)."""
    return geglu(functional.linear(inputs, weight, bias))
