"""LoRAs beside unpatched weights, row by row: one set of weights cannot hold two of them at once, a batch can."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.families.model import LowRankUpdate, PerSampleAdapters


def adapted(denoiser: torch.nn.Module, adapters: PerSampleAdapters | None) -> AbstractContextManager[None]:
    """Add the rows' updates to the named linear layers of `denoiser` while the context is open. KeyError for an unknown
    name."""
    return nullcontext() if adapters is None else _hooked(denoiser, adapters)


@contextmanager
def _hooked(denoiser: torch.nn.Module, adapters: PerSampleAdapters) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, update in adapters.updates.items():
            try:
                layer = denoiser.get_submodule(name)
            except AttributeError:
                raise KeyError(f"the denoiser has no layer {name!r}") from None
            hooks.enter_context(layer.register_forward_hook(_adding(update)))
        yield


def _adding(update: LowRankUpdate) -> Any:
    def add(layer: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + low_rank_product(inputs[0], update)

    return add


def low_rank_product(inputs: Tensor, update: LowRankUpdate) -> Tensor:
    """Return up(down(x)) by row: inputs (rows, ..., inputs) to (rows, ..., outputs)."""
    rows = inputs.shape[0]
    flat = inputs.reshape(rows, -1, inputs.shape[-1])
    product = torch.bmm(torch.bmm(flat, update.down.transpose(1, 2)), update.up.transpose(1, 2))
    return product.reshape(*inputs.shape[:-1], -1)
