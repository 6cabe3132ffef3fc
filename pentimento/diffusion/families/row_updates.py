"""Define LoRA updates that apply to rows of a batch while the weights stay unpatched, and replace the forward functions
of layers for one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)


@dataclass(frozen=True)
class LowRankUpdate:
    """Hold a layer's LoRA update per row, up(down(x)) (Hu et al. 2021), scales multiplied in: up (rows, outputs, rank),
    down (rows, rank, inputs) of a linear layer, (rows, rank, inputs, height, width) of a convolution; zero for rows
    without an adapter. The update applies to the batch's rows from `first_row` on; other rows are unchanged."""

    down: Tensor
    up: Tensor
    first_row: int = 0

    @property
    def rows(self) -> slice:
        """Return the rows of the batch that the update changes."""
        return slice(self.first_row, self.first_row + self.down.shape[0])

    @cached_property
    def down_columns(self) -> Tensor:
        """Return `down` as (rows, inputs, rank)."""
        return self.down.transpose(1, 2).contiguous()

    @cached_property
    def up_columns(self) -> Tensor:
        """Return `up` as (rows, rank, outputs)."""
        return self.up.transpose(1, 2).contiguous()

    @cached_property
    def down_taps(self) -> Tensor:
        """Return a convolution's `down` as (rows, rank * height * width, inputs), with the kernel's taps reversed, in
        the order that torch's `fold` expects."""
        return self.down.flip(3, 4).permute(0, 1, 3, 4, 2).flatten(1, 3).contiguous()


@dataclass(frozen=True)
class Canvas:
    """Hold the memory that sums a kernel's taps: `whole` (rows, rank, padded height, padded width), `places`, a view of
    it for each tap, and `middle`, the part without padding. `taps_shape` is (rows, rank, taps, height, width)."""

    whole: Tensor
    places: tuple[Tensor, ...]
    middle: Tensor
    taps_shape: tuple[int, ...]


Canvases = dict[tuple[object, ...], Canvas]


@dataclass(frozen=True)
class PerSampleAdapters:
    """Hold LoRA updates by the name of the denoiser's module, applied per row to unpatched weights so that a batch may
    mix LoRAs."""

    updates: Mapping[str, LowRankUpdate]

    @cached_property
    def by_layer(self) -> dict[torch.nn.Module, dict[torch.nn.Module, LowRankUpdate]]:
        """Return the cache of updates by layer, by network. One thread only."""
        return {}

    @cached_property
    def canvases(self) -> Canvases:
        """Return the scratch memory of the convolutions, by shape. One thread only."""
        return {}


Forward = Callable[[Tensor], Tensor]


@contextmanager
def replaced(layers: Iterable[Layer], forward: Callable[[Layer, Forward, Tensor], Tensor]) -> Iterator[None]:
    """Call `forward` with the layer, its previous forward function and its inputs while the context is open. Bypasses
    the modules' own bookkeeping, which takes longer than a small layer's arithmetic."""
    own = [(layer, layer.__dict__.get("forward")) for layer in layers]
    try:
        for layer, _ in own:
            layer.__dict__["forward"] = partial(forward, layer, layer.forward)
        yield
    finally:
        for layer, before in own:
            if before is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = before
