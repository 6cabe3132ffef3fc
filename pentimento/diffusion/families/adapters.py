"""Apply LoRAs row by row to unpatched weights, so that one batch may mix several LoRAs."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.families.row_updates import (
    Canvas,
    Canvases,
    Forward,
    LowRankUpdate,
    PerSampleAdapters,
    replaced,
)

# Pixels: below, torch's `fold` is faster than nine additions of views; above, it takes four times as long.
_FEW_PIXELS = 64


def adapted(network: nn.Module, adapters: PerSampleAdapters | None) -> AbstractContextManager[None]:
    """Add the rows' updates to the named layers of `network` while the context is open. Raises KeyError for an unknown
    name."""
    return nullcontext() if adapters is None else _adding(network, adapters)


def _adding(network: nn.Module, adapters: PerSampleAdapters) -> AbstractContextManager[None]:
    # The same rows stay in the batch for many steps: names are looked up once.
    updates = adapters.by_layer.get(network)
    if updates is None:
        updates = adapters.by_layer[network] = _updates_of(network, adapters)

    def forward(layer: nn.Module, plain: Forward, inputs: Tensor) -> Tensor:
        output, update = plain(inputs), updates[layer]
        own, seen = output[update.rows], inputs[update.rows]
        if isinstance(layer, nn.Conv2d):
            changed = add_convolved(own, layer, seen, update, adapters.canvases)
        else:
            changed = add_product(own, seen, update)
        # The update made a copy if the output's pixels are not contiguous.
        if changed.data_ptr() != own.data_ptr():
            output[update.rows] = changed
        return output

    return replaced(updates, forward)


def _updates_of(network: nn.Module, adapters: PerSampleAdapters) -> dict[nn.Module, LowRankUpdate]:
    layers = dict(network.named_modules())
    unknown = next((name for name in adapters.updates if name not in layers), None)
    if unknown is not None:
        raise KeyError(f"the network has no layer {unknown!r}")
    return {layers[name]: update for name, update in adapters.updates.items()}


def add_product(output: Tensor, inputs: Tensor, update: LowRankUpdate) -> Tensor:
    """Return output + up(down(x)) by row, for inputs (rows, ..., inputs) and outputs (rows, ..., outputs); the layer's
    output is changed in place."""
    rows = inputs.shape[0]
    low = torch.bmm(inputs.reshape(rows, -1, inputs.shape[-1]), update.down_columns)
    flat = output.reshape(rows, -1, output.shape[-1])
    return flat.baddbmm_(low, update.up_columns).reshape(output.shape)


def add_convolved(
    output: Tensor, layer: nn.Conv2d, inputs: Tensor, update: LowRankUpdate, canvases: Canvases
) -> Tensor:
    """Return output + up(down(x)) by row, for inputs (rows, channels, height, width); the layer's output is changed in
    place. `canvases` are stored for the next call."""
    if _keeps_size(layer):
        low = _convolved_by_taps(layer, inputs, update, canvases)
    else:
        low = _convolved(layer, inputs, update)
    flat = output.reshape(output.shape[0], output.shape[1], -1)
    return flat.baddbmm_(update.up, low).reshape(output.shape)


def _keeps_size(layer: nn.Conv2d) -> bool:
    """Return whether outputs align with inputs pixel by pixel: a kernel's taps can then be applied before the shift."""
    plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return plain and all(
        before * 2 + 1 == side for before, side in zip(_padding(layer), layer.kernel_size, strict=True)
    )


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(layer.padding, str), "diffusers' layers state their padding in numbers"
    return layer.padding


def _convolved_by_taps(layer: nn.Conv2d, inputs: Tensor, update: LowRankUpdate, canvases: Canvases) -> Tensor:
    """Return down(x) as (rows, rank, pixels): one product for all taps of the kernel, then each tap's result is added
    at its offset. A grouped convolution with other weights in each row takes up to twice as long."""
    rows, _, height, width = inputs.shape
    low = torch.bmm(update.down_taps, inputs.reshape(rows, inputs.shape[1], -1))
    if layer.kernel_size == (1, 1):
        return low
    if inputs.device.type != "cpu" or height * width < _FEW_PIXELS:
        return functional.fold(low, (height, width), layer.kernel_size, padding=_padding(layer)).flatten(2)
    canvas = _canvas(low, (height, width), layer, canvases)
    canvas.whole.zero_()
    for place, tap in zip(canvas.places, low.view(*canvas.taps_shape).unbind(2), strict=True):
        place.add_(tap)
    return canvas.middle.flatten(2)


def _canvas(low: Tensor, size: tuple[int, int], layer: nn.Conv2d, canvases: Canvases) -> Canvas:
    (height, width), (over, beside), (tall, wide) = size, _padding(layer), layer.kernel_size
    key = (low.shape, low.dtype, size, layer.kernel_size)
    if key not in canvases:
        rows, rank = low.shape[0], low.shape[1] // (tall * wide)
        whole = low.new_zeros((rows, rank, height + 2 * over, width + 2 * beside))
        places = [whole[:, :, y : y + height, x : x + width] for y in range(tall) for x in range(wide)]
        middle = whole[:, :, over : over + height, beside : beside + width]
        canvases[key] = Canvas(whole, tuple(places), middle, (rows, rank, tall * wide, height, width))
    return canvases[key]


def _convolved(layer: nn.Conv2d, inputs: Tensor, update: LowRankUpdate) -> Tensor:
    rows = inputs.shape[0]
    weights = update.down.reshape(-1, *update.down.shape[2:])
    geometry = (layer.stride, _padding(layer), layer.dilation)
    low = functional.conv2d(inputs.reshape(1, -1, *inputs.shape[2:]), weights, None, *geometry, groups=rows)
    return low.reshape(rows, update.down.shape[1], -1)
