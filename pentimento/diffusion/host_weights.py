"""Keep a network's weights in host memory, and copy each layer's to the device for the time of its call.

The device holds one layer at a time, in the order of its other work. diffusers' group offloading moves lists of layers
only where a network has them as direct children; text encoders of transformers have them deeper.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def keep_in_host_memory(network: nn.Module, device: torch.device) -> None:
    """Run a network that is in host memory on `device` (changes it): for a GPU its memory is pinned."""
    if device.type == "cuda":
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = tensor.data.pin_memory()
    for layer in _layers(network):
        visit = _LayerVisit(layer, device)
        layer.register_forward_pre_hook(visit.arrive)
        layer.register_forward_hook(visit.leave, always_call=True)


def is_in_host_memory(network: nn.Module) -> bool:
    """Return whether a network's weights stay in host memory."""
    hooks = (hook for module in network.modules() for hook in module._forward_pre_hooks.values())
    return any(isinstance(getattr(hook, "__self__", None), _LayerVisit) for hook in hooks)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """Yield modules that together hold all weights: the elements of lists, and modules without a list in them. A layer
    may read the weights of its parts without calling them."""
    for child in network.children():
        if _is_list(network) or not any(map(_is_list, child.modules())):
            yield child
        else:
            yield from _layers(child)


def _is_list(module: nn.Module) -> bool:
    # The parametrisations of a packed weight are a subclass.
    return type(module) is nn.ModuleList


class _LayerVisit:
    """Exchange a layer's weights for their copies while it is called."""

    def __init__(self, layer: nn.Module, device: torch.device) -> None:
        self._tables = [table for one in layer.modules() for table in (one._parameters, one._buffers)]
        self._device = device
        self._kept: list[dict[str, Tensor | None]] = []

    def arrive(self, *_: object) -> None:
        """Copy the weights to the device."""
        self._kept = [dict(table) for table in self._tables]
        for table in self._tables:
            table |= {name: self._copied(tensor) for name, tensor in table.items() if tensor is not None}

    def leave(self, *_: object) -> None:
        """Drop the copies."""
        for table, kept in zip(self._tables, self._kept, strict=True):
            table |= kept

    def _copied(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True, copy=True)
