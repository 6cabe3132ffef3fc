"""Layers of diffusers with a kernel inside. Each holds the parameters of the layer that it replaces, under the same
names: a patched weight is seen, and so is a hook on the projection."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from pentimento.diffusion.kernels import reference


@dataclass(frozen=True)
class Kernels:
    """What the layers compute with, called as the functions of `reference` are. Without `projected_geglu` a projection
    and its GEGLU are computed one after the other."""

    group_norm_silu: Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
    geglu: Callable[[Tensor], Tensor]
    projected_geglu: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None


REFERENCE = Kernels(reference.group_norm_silu, reference.geglu)


class NormSilu(nn.GroupNorm):
    """Group normalisation with SiLU behind it. Inputs that do not lie row by row go the reference's way."""

    def __init__(self, norm: nn.GroupNorm, kernels: Kernels) -> None:
        super().__init__(norm.num_groups, norm.num_channels, norm.eps, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return SiLU of the normalised inputs (rows, channels, height, width)."""
        kernels = self._kernels if inputs.is_contiguous() else REFERENCE
        return kernels.group_norm_silu(inputs, self.weight, self.bias, self.num_groups, self.eps)


class SiluOfTimes(nn.SiLU):
    """A residual block's SiLU where `NormSilu` has activated the pictures already: what is left is its embedding of the
    timestep (rows, width)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return SiLU of an embedding; pictures (rows, channels, height, width) as they came."""
        return super().forward(inputs) if inputs.ndim == 2 else inputs


class FusedGeglu(nn.Module):
    """diffusers' GEGLU around its own projection. With `projected_geglu` the projection is computed inside the kernel
    (Katz, section 7), unless somebody listens to it: a LoRA beside the weights needs it whole."""

    def __init__(self, projection: nn.Linear, kernels: Kernels) -> None:
        super().__init__()
        self.proj = projection
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return GEGLU (..., width) of the projected inputs."""
        projection, whole = self.proj, self._kernels.projected_geglu
        # `replaced` puts what a LoRA adds into the layer's own dictionary.
        is_replaced = "forward" in projection.__dict__ or bool(projection._forward_hooks)
        if whole is None or projection.bias is None or is_replaced:
            return self._kernels.geglu(projection(inputs))
        return whole(inputs, projection.weight, projection.bias)
