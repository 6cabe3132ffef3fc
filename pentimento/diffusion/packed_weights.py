"""Store the weights of linear layers and convolutions in eight bits, and compute in the model's precision.

`weight` of a packed layer is one of torch's parametrisations: a read returns the weight in full precision, which is
freed after its use. So diffusers' forward functions, fused kernels, CUDA graphs and LoRAs by row need no change.
torchao's tensors pack no convolutions, which hold more than half of a UNet's weights.

Scales belong to output channels. FP8 (e4m3) scales are powers of two, so that the weights of a file in e4m3 stay exact.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pentimento.devices.choices import WeightStorage

_FP8 = torch.float8_e4m3fn
_LARGEST = {torch.int8: 127.0, _FP8: torch.finfo(_FP8).max}
# The first and last layers of a denoiser hold few weights, and every value of the result.
_FULL = ("conv_in", "conv_out", "pos_embed.proj", "x_embedder", "proj_out")
# Types of GGUF that are numbers of a known precision.
_PLAIN_KINDS = ("F32", "F16", "BF16")
Layer = nn.Linear | nn.Conv2d


class PackedWeight(nn.Module):
    """Turn eight-bit values (outputs, ...) and scales (outputs, 1, ...) into a weight, and a weight into these."""

    def __init__(self, stored: torch.dtype) -> None:
        super().__init__()
        self._stored = stored

    def forward(self, values: Tensor, scales: Tensor) -> Tensor:
        """Return the weight in the scales' precision."""
        return values.to(scales.dtype).mul_(scales)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values nearest to a weight, and their scales."""
        largest = weight.float().abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.dim() - 1))
        scales = largest / _LARGEST[self._stored]
        if self._stored is _FP8:
            scales = torch.exp2(scales.log2().ceil())
        # A channel of zeros, or one below the precision's smallest number.
        scales = scales.clamp(min=torch.finfo(weight.dtype).tiny).to(weight.dtype)
        values = weight.float() / scales.float()
        if self._stored is torch.int8:
            values = values.round().clamp(-127, 127)
        return values.to(self._stored), scales


class BlockWeight(nn.Module):
    """Turn the bytes of GGUF's blocks (outputs, bytes) into a weight."""

    def __init__(self, kind: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self._kind = kind
        self._dtype = dtype

    def forward(self, blocks: Tensor) -> Tensor:
        """Return the weight."""
        return unpacked(blocks, self._kind, self._dtype)


def unpacked(blocks: Tensor, kind: Any, dtype: torch.dtype) -> Tensor:
    """Return the values of GGUF's blocks of a type; diffusers' own layers compute them in half precision."""
    from diffusers.quantizers.gguf.utils import GGML_QUANT_SIZES, dequantize_functions

    block_size, type_size = GGML_QUANT_SIZES[kind]
    values: Tensor = dequantize_functions[kind](blocks.reshape(-1, type_size), block_size, type_size, dtype)
    return values.reshape(*blocks.shape[:-1], -1).to(dtype)


def pack_blocks(network: nn.Module, tensors: dict[str, Any], dtype: torch.dtype) -> set[str]:
    """Give linear layers their weights as GGUF's blocks, and return the names; other blocks of `tensors` become values
    (changes both). Raises ValueError for another shape than the layer's."""
    packed = set()
    for name, tensor in tensors.items():
        if (kind := getattr(tensor, "quant_type", None)) is None:
            continue
        layer, blocks = network.get_submodule(name.rpartition(".")[0]), tensor.as_tensor()
        if not isinstance(layer, nn.Linear) or kind.name in _PLAIN_KINDS:
            tensors[name] = unpacked(blocks, kind, dtype)
            continue
        if tuple(tensor.quant_shape) != tuple(layer.weight.shape):
            found, wanted = tuple(tensor.quant_shape), tuple(layer.weight.shape)
            raise ValueError(f"tensor {name!r} is {found}, the configuration says {wanted}")
        layer.weight = nn.Parameter(blocks, requires_grad=False)
        # Shape and type differ from the weight's, which `unsafe` permits.
        parametrize.register_parametrization(layer, "weight", BlockWeight(kind, dtype), unsafe=True)
        packed.add(name)
    return packed


def pack(network: nn.Module, storage: WeightStorage) -> None:
    """Pack a network's layers, but the first and the last of a denoiser (changes it)."""
    stored = {WeightStorage.INT8: torch.int8, WeightStorage.FP8: _FP8}.get(storage)
    if stored is None:
        return
    for layer in list(_layers(network)):
        layer.weight.requires_grad_(False)
        parametrize.register_parametrization(layer, "weight", PackedWeight(stored))


def _layers(network: nn.Module) -> Iterator[Layer]:
    for name, module in network.named_modules():
        if isinstance(module, Layer) and name not in _FULL and not parametrize.is_parametrized(module, "weight"):
            yield module


def is_packed(network: nn.Module) -> bool:
    """Return whether any layer's weight is packed: it cannot be changed in place."""
    return any(parametrize.is_parametrized(module, "weight") for module in network.modules())
