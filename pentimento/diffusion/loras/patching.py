"""Add LoRAs to a network's weights in place and restore the same bits (Katz, section 6).

Text encoders, which run once per prompt, use patched copies of the weights, one layer at a time.

A layer's weight before its first patch stays in host memory: the next patch of the layer needs no copy, which takes
longer than the product. Restoring copies these bits back and subtracts nothing: in floating point W + change - change
is not W. Factors and weights go between device and host in few large pieces: copying hundreds of layers one by one from
pageable memory takes ten times as long.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.families.layer_forwards import Forward, replaced
from pentimento.diffusion.host_memory import HostMemory, packed_bytes
from pentimento.diffusion.loras.changes import DecomposedFactors, LayerChange, LowRankFactors, difference
from pentimento.diffusion.loras.lora import AdapterSet, changes_by_module, set_key


class FactorsThere:
    """Hold LoRA factors on a device in single precision. Factors of one file share one storage, which is copied
    once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[int, Tensor] = {}

    def matrices(self, factors: LowRankFactors) -> tuple[Tensor, Tensor]:
        """Return up (outputs, rank) and down (rank, inputs * height * width)."""
        return self.tensor(factors.up).flatten(1), self.tensor(factors.down).flatten(1)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device in single precision."""
        if tensor.device == self._device or self._device.type == "cpu":
            return tensor.to(self._device, torch.float32)
        memory = tensor.untyped_storage()
        if (copy := self._copies.get(memory.data_ptr())) is None:
            whole = torch.empty(0, dtype=tensor.dtype).set_(memory)
            copy = self._copies[memory.data_ptr()] = whole.to(self._device).float()
        return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class KeptWeights:
    """Hold copies of weights in host memory with unchanged strides, in pinned memory for a CUDA device. Copies are
    valid for users of the device's current stream."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._memories: list[HostMemory] = []

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights that have no copy yet."""
        new = {name: weight for name, weight in weights.items() if name not in self.by_name}
        if not new:
            return
        is_read_by_device = next(iter(new.values())).device.type == "cuda"
        memory = HostMemory(packed_bytes(new.values()), is_read_by_device=is_read_by_device)
        copies = dict(zip(new, memory.copies(new.values()), strict=True))
        # All or none: an incomplete copy must never be restored.
        self._memories.append(memory)
        self.by_name |= copies


_CACHED_BYTES, _ROWS = 1024 * 1024, 64


class WeightPatch:
    """Hold the weights of one network with one set of LoRAs in them, or none. Use from one thread only; no other code
    may change the weights during its lifetime."""

    def __init__(self, network: nn.Module, component: str, changed: Callable[[], None] = lambda: None) -> None:
        """Start without LoRAs. Each change of the weights is followed by a call of `changed`."""
        self._network = network
        self._component = component
        self._changed = changed
        self._held: AdapterSet = ()
        self._originals = KeptWeights()
        self._patched: set[str] = set()

    @property
    def held(self) -> AdapterSet:
        """Return the set that is in the weights."""
        return self._held

    @property
    def saved_bytes(self) -> int:
        """Return the host memory in bytes of the stored weights: those of all layers that were ever patched."""
        return sum(original.nbytes for original in self._originals.by_name.values())

    def holds(self, adapters: AdapterSet) -> bool:
        """Return whether the weights are those of the set."""
        return set_key(self._held, self._component) == set_key(adapters, self._component)

    def hold(self, adapters: AdapterSet) -> None:
        """Change the weights to those of the set, adding its LoRAs in order. After any error the network has its
        original weights."""
        if self.holds(adapters):
            return
        parts = changes_by_module(adapters, self._component)
        try:
            self._replace(parts)
        except BaseException:
            self._replace({})
            self._held = ()
            raise
        self._held = adapters

    @torch.no_grad()
    def _replace(self, parts: dict[str, list[tuple[LayerChange, float]]]) -> None:
        for name in sorted(self._patched):
            self._weight(name).copy_(self._originals.by_name[name], non_blocking=True)
            self._patched.remove(name)
        weights = {name: self._weight(name) for name in parts}
        self._originals.keep(weights)
        there = FactorsThere(next(self._network.parameters()).device)
        for name, changes in parts.items():
            self._patched.add(name)
            _add_all(weights[name], changes, there)
        self._changed()

    def _weight(self, name: str) -> Tensor:
        weight = self._network.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        return weight.detach()


def patched_copies(network: nn.Module, component: str, adapters: AdapterSet) -> AbstractContextManager[None]:
    """Run linear layers of `network` with the set in their weights while the context is open, with the bits of
    `WeightPatch`. Each weight is copied only for the duration of its product, so nothing needs restoring."""
    changes = {network.get_submodule(name): parts for name, parts in changes_by_module(adapters, component).items()}

    def forward(layer: nn.Module, plain: Forward, inputs: Tensor) -> Tensor:
        assert isinstance(layer, nn.Linear), "text encoders have no other layers that LoRAs change"
        weight = layer.weight.detach().clone()
        _add_all(weight, changes[layer], FactorsThere(weight.device))
        return functional.linear(inputs, weight, layer.bias)

    return replaced(changes, forward)


def _add_all(weight: Tensor, changes: Sequence[tuple[LayerChange, float]], there: FactorsThere) -> None:
    """Add the changes of a layer to its weight, in order. DoRA's depend on the weight before the first one."""
    decomposed = any(isinstance(change, DecomposedFactors) for change, _ in changes)
    base = weight.clone() if decomposed and len(changes) > 1 else weight
    for change, strength in changes:
        if isinstance(change, LowRankFactors):
            _add(weight, change, strength, there)
        else:
            weight.add_(difference(change, strength, base, there.tensor))


def _add(weight: Tensor, factors: LowRankFactors, strength: float, there: FactorsThere) -> None:
    """Add a change to a weight, rounding as PEFT's merge does: the product, then its scale, then the sum. A
    convolution's weight is also a matrix: (outputs, inputs * height * width)."""
    (up, down), scale = there.matrices(factors), factors.scale * strength
    row_count = min(_rows_at_once(down), len(weight)) if down.device.type == "cpu" else len(weight)
    change = down.new_empty((row_count, down.shape[1]))
    for part, rows in zip(weight.split(row_count), up.split(row_count), strict=True):
        torch.mm(rows, down, out=change[: len(part)])
        # torch adds mixed types in single precision: a half-precision weight is rounded only after the sum.
        part.add_(change[: len(part)].mul_(scale).view(part.shape))


def _rows_at_once(down: Tensor) -> int:
    """Return a number of rows with a change that fits a processor's cache, in 0.7 of the time that main memory takes.
    Multiples of 64 keep the product's bits, which depend on the split."""
    return max(_CACHED_BYTES // (down.shape[1] * down.itemsize) // _ROWS * _ROWS, _ROWS)
