"""Run diffusers' layers with a kernel inside.

Each layer holds the parameters of the layer that it replaces, under the same names: patches of the weights and hooks on
the projection take effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.kernels import reference


@dataclass(frozen=True)
class Kernels:
    """Hold the functions that the layers compute with, with the signatures of `reference`."""

    group_norm: Callable[..., Tensor] = reference.group_norm
    join: Callable[[Tensor, Tensor, Tensor | None], Tensor] = reference.join
    add_layer_norm: Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = reference.add_layer_norm
    geglu: Callable[[Tensor], Tensor] = reference.geglu


REFERENCE = Kernels()
MOST_ELEMENTS = 2**31


class FusedNorm(nn.GroupNorm):
    """Apply group normalisation, and SiLU after it if `activates`. Inputs that the kernels do not take use the
    reference."""

    def __init__(self, norm: nn.GroupNorm, kernels: Kernels, *, activates: bool) -> None:
        super().__init__(norm.num_groups, norm.num_channels, norm.eps, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self.kernels = kernels
        self.activates = activates

    def forward(self, inputs: Tensor, shifts: Tensor | None = None) -> Tensor:
        """Return the inputs (rows, channels, height, width) plus `shifts` (rows, channels), normalised."""
        kernels = self.kernels if takes(inputs) else REFERENCE
        given = (inputs, self.weight, self.bias, self.num_groups, self.eps)
        return kernels.group_norm(*given, shifts=shifts, activated=self.activates)


class FusedLayerNorm(nn.LayerNorm):
    """Apply layer normalisation, together with the sum before it."""

    def __init__(self, norm: nn.LayerNorm, kernels: Kernels) -> None:
        super().__init__(norm.normalized_shape, norm.eps, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self._kernels = kernels

    def added(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return left + right (..., width), and its layer normalisation."""
        return self._kernels.add_layer_norm(left, right, self.weight, self.bias, self.eps)


class SiluOfTimes(nn.SiLU):
    """Apply a residual block's SiLU to the embedding of the timestep (rows, width) only: `FusedNorm` has already
    activated the feature maps."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return SiLU of an embedding; feature maps (rows, channels, height, width) unchanged."""
        return super().forward(inputs) if inputs.ndim == 2 else inputs


class FusedGeglu(nn.Module):
    """Apply diffusers' GEGLU with its projection."""

    def __init__(self, projection: nn.Linear, kernels: Kernels) -> None:
        super().__init__()
        self.proj = projection
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return GEGLU (..., width) of the projected inputs."""
        return self._kernels.geglu(self.proj(inputs))


def takes(inputs: Tensor) -> bool:
    """Return whether the kernels take feature maps: channels last, and few enough elements to count in 32 bits."""
    return lies_channels_last(inputs) and inputs.numel() < MOST_ELEMENTS


def lies_channels_last(inputs: Tensor) -> bool:
    """Return whether feature maps (rows, channels, height, width) are contiguous with channels last."""
    return inputs.is_contiguous(memory_format=torch.channels_last)


def residual_block(resnet: Any, inputs: Tensor, terms: Tensor | None = None) -> Tensor:
    """Return the output of a residual block with fused norms for inputs (rows, channels, height, width) and the `terms`
    (rows, channels) of its timestep, if it has any. The kernels after its convolutions add their biases."""
    hidden, bias = _convolved(resnet.conv1, resnet.norm1(inputs))
    hidden, bias = _convolved(resnet.conv2, resnet.norm2(hidden, _shifts(terms, bias, inputs.shape[0])))
    shortcut = inputs
    if resnet.conv_shortcut is not None:
        shortcut, beside = _convolved(resnet.conv_shortcut, inputs)
        bias = beside if bias is None else bias if beside is None else bias + beside
    fits = takes(hidden) and takes(shortcut)
    kernels: Kernels = resnet.norm2.kernels if fits else REFERENCE
    hidden = kernels.join(hidden, shortcut, bias)
    return hidden if resnet.output_scale_factor == 1.0 else hidden.div_(resnet.output_scale_factor)


def _shifts(terms: Tensor | None, bias: Tensor | None, rows: int) -> Tensor | None:
    """Return the sum to add to each row's channels (rows, channels); None for nothing."""
    if terms is None:
        return None if bias is None else bias.expand(rows, -1)
    return terms if bias is None else terms + bias


def _convolved(layer: nn.Conv2d, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a convolution without its bias, and the bias; the whole layer's output and None if the layer is hooked, as
    by a LoRA next to its weights, or is padded with other values than zeros."""
    if layer.bias is None or is_listened_to(layer) or layer.padding_mode != "zeros":
        return layer(inputs), None
    return functional.conv2d(inputs, layer.weight, None, layer.stride, layer.padding, layer.dilation), layer.bias


def is_listened_to(layer: nn.Module) -> bool:
    """Return whether the layer computes more than its class's forward pass: `replaced` stores a LoRA's forward in the
    layer's dictionary."""
    return "forward" in layer.__dict__ or bool(layer._forward_hooks)


def projects_tokens(transformer: Any) -> bool:
    """Return whether a fused transformer's 1x1 convolutions can be computed as products of its tokens."""
    layers = (transformer.proj_in, transformer.proj_out)
    return isinstance(transformer.norm, FusedNorm) and not any(map(is_listened_to, layers))


def projected(layer: nn.Linear | nn.Conv2d, tokens: Tensor) -> Tensor:
    """Return the output of a linear layer or a 1x1 convolution for tokens (rows, tokens, width)."""
    if isinstance(layer, nn.Conv2d):
        return functional.linear(tokens, layer.weight.flatten(1), layer.bias)
    return cast("Tensor", layer(tokens))
