"""LoRAs beside unpatched weights, row by row: one set of weights cannot hold two of them at once, a batch can."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.families.model import LowRankUpdate, PerSampleAdapters


def adapted(network: torch.nn.Module, adapters: PerSampleAdapters | None) -> AbstractContextManager[None]:
    """Add the rows' updates to the named layers of `network` while the context is open. KeyError for an unknown
    name."""
    return nullcontext() if adapters is None else _hooked(network, adapters)


@contextmanager
def _hooked(network: torch.nn.Module, adapters: PerSampleAdapters) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, update in adapters.updates.items():
            try:
                layer = network.get_submodule(name)
            except AttributeError:
                raise KeyError(f"the network has no layer {name!r}") from None
            hooks.enter_context(layer.register_forward_hook(_adding(update)))
        yield


def _adding(update: LowRankUpdate) -> Any:
    def add(layer: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if isinstance(layer, nn.Conv2d):
            return add_convolved(output, layer, inputs[0], update)
        return add_product(output, inputs[0], update)

    return add


def add_product(output: Tensor, inputs: Tensor, update: LowRankUpdate) -> Tensor:
    """Return output + up(down(x)) by row, for inputs (rows, ..., inputs) and outputs (rows, ..., outputs); what the
    layer allocated is changed in place."""
    rows = inputs.shape[0]
    low = torch.bmm(inputs.reshape(rows, -1, inputs.shape[-1]), update.down_columns)
    flat = output.reshape(rows, -1, output.shape[-1])
    return flat.baddbmm_(low, update.up_columns).reshape(output.shape)


def add_convolved(output: Tensor, layer: nn.Conv2d, inputs: Tensor, update: LowRankUpdate) -> Tensor:
    """Return output + up(down(x)) by row, for inputs (rows, channels, height, width); what the layer allocated is
    changed in place."""
    low = _convolved_by_taps(layer, inputs, update) if _keeps_size(layer) else _convolved(layer, inputs, update)
    flat = output.reshape(output.shape[0], output.shape[1], -1)
    return flat.baddbmm_(update.up, low).reshape(output.shape)


def _keeps_size(layer: nn.Conv2d) -> bool:
    """Whether the outputs lie where the inputs do: then a kernel's taps can be applied before they are shifted."""
    plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return plain and all(
        before * 2 + 1 == side for before, side in zip(_padding(layer), layer.kernel_size, strict=True)
    )


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(layer.padding, str), "diffusers' layers state their padding in numbers"
    return layer.padding


def _convolved_by_taps(layer: nn.Conv2d, inputs: Tensor, update: LowRankUpdate) -> Tensor:
    """down(x) as (rows, rank, pixels): one product for all taps of the kernel, then each tap's result at its place. A
    convolution with other weights in each row would have a kernel of its own for every row, and takes up to twice as
    long."""
    rows, _, height, width = inputs.shape
    low = torch.bmm(update.down_taps, inputs.reshape(rows, inputs.shape[1], -1))
    if layer.kernel_size == (1, 1):
        return low
    return functional.fold(low, (height, width), layer.kernel_size, padding=_padding(layer)).flatten(2)


def _convolved(layer: nn.Conv2d, inputs: Tensor, update: LowRankUpdate) -> Tensor:
    rows = inputs.shape[0]
    weights = update.down.reshape(-1, *update.down.shape[2:])
    geometry = (layer.stride, _padding(layer), layer.dilation)
    low = functional.conv2d(inputs.reshape(1, -1, *inputs.shape[2:]), weights, None, *geometry, groups=rows)
    return low.reshape(rows, update.down.shape[1], -1)
