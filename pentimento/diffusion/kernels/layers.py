"""Layers of diffusers with a kernel inside. Each holds the parameters of the layer that it replaces, under the same
names: a patched weight is seen, and so is a hook on the projection."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.kernels import reference


@dataclass(frozen=True)
class Kernels:
    """What the layers compute with, called as the functions of `reference` are."""

    group_norm: Callable[..., Tensor] = reference.group_norm
    join: Callable[[Tensor, Tensor, Tensor | None], Tensor] = reference.join
    add_layer_norm: Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = reference.add_layer_norm
    geglu: Callable[[Tensor], Tensor] = reference.geglu


REFERENCE = Kernels()
MOST_ELEMENTS = 2**31


class FusedNorm(nn.GroupNorm):
    """Group normalisation, with SiLU behind it where `activates`. What the kernels do not take goes the
    reference's way."""

    def __init__(self, norm: nn.GroupNorm, kernels: Kernels, *, activates: bool) -> None:
        super().__init__(norm.num_groups, norm.num_channels, norm.eps, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self.kernels = kernels
        self.activates = activates

    def forward(self, inputs: Tensor, shifts: Tensor | None = None) -> Tensor:
        """Return the normalised inputs (rows, channels, height, width), `shifts` (rows, channels) added before."""
        kernels = self.kernels if takes(inputs) else REFERENCE
        given = (inputs, self.weight, self.bias, self.num_groups, self.eps)
        return kernels.group_norm(*given, shifts=shifts, activated=self.activates)


class FusedLayerNorm(nn.LayerNorm):
    """Layer normalisation that takes what is added before it."""

    def __init__(self, norm: nn.LayerNorm, kernels: Kernels) -> None:
        super().__init__(norm.normalized_shape, norm.eps, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self._kernels = kernels

    def added(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return left + right (..., width), and the same normalised."""
        return self._kernels.add_layer_norm(left, right, self.weight, self.bias, self.eps)


class SiluOfTimes(nn.SiLU):
    """A residual block's SiLU where `FusedNorm` has activated the pictures already: what is left is its embedding of
    the timestep (rows, width)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return SiLU of an embedding; pictures (rows, channels, height, width) as they came."""
        return super().forward(inputs) if inputs.ndim == 2 else inputs


class FusedGeglu(nn.Module):
    """diffusers' GEGLU around its own projection."""

    def __init__(self, projection: nn.Linear, kernels: Kernels) -> None:
        super().__init__()
        self.proj = projection
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return GEGLU (..., width) of the projected inputs."""
        return self._kernels.geglu(self.proj(inputs))


def takes(inputs: Tensor) -> bool:
    """Return whether the kernels take pictures as they lie; they count elements in 32 bits."""
    return lies_channels_last(inputs) and inputs.numel() < MOST_ELEMENTS


def lies_channels_last(inputs: Tensor) -> bool:
    """Return whether the values of a pixel of pictures (rows, channels, height, width) are neighbours."""
    return inputs.is_contiguous(memory_format=torch.channels_last)


def residual_block(resnet: Any, inputs: Tensor, terms: Tensor | None = None) -> Tensor:
    """Return what a residual block of fused norms makes of inputs (rows, channels, height, width) and of its timestep's
    `terms` (rows, channels), if it has any. Biases of its convolutions are added inside the kernels behind them."""
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
    """What is added to a picture's channels (rows, channels); None for nothing."""
    if terms is None:
        return None if bias is None else bias.expand(rows, -1)
    return terms if bias is None else terms + bias


def _convolved(layer: nn.Conv2d, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a convolution without its bias, and the bias; whole where somebody listens to the layer, such as a LoRA
    beside its weights."""
    if layer.bias is None or is_listened_to(layer) or layer.padding_mode != "zeros":
        return layer(inputs), None
    return functional.conv2d(inputs, layer.weight, None, layer.stride, layer.padding, layer.dilation), layer.bias


def is_listened_to(layer: nn.Module) -> bool:
    """Return whether the layer computes more than its own forward pass: `replaced` puts what a LoRA adds into the
    layer's own dictionary."""
    return "forward" in layer.__dict__ or bool(layer._forward_hooks)


def projects_tokens(transformer: Any) -> bool:
    """Return whether a fused transformer's convolutions of one pixel can be computed as products of its tokens."""
    layers = (transformer.proj_in, transformer.proj_out)
    return isinstance(transformer.norm, FusedNorm) and not any(map(is_listened_to, layers))


def projected(layer: nn.Linear | nn.Conv2d, tokens: Tensor) -> Tensor:
    """Return what a linear layer, or a convolution of one pixel, makes of tokens (rows, tokens, width)."""
    if isinstance(layer, nn.Conv2d):
        return functional.linear(tokens, layer.weight.flatten(1), layer.bias)
    return cast("Tensor", layer(tokens))
