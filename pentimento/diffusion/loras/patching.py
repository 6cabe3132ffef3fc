"""Add LoRAs to a network's weights and restore the same bits (Katz, section 6).

Each layer that a LoRA changes has a second weight in host memory, from its first patch on. On a CPU it takes the sum,
and the layer uses it while patched: the base weight is never written, and may be the mapped page of a file. On a GPU,
where recorded graphs have the weight's address, the sum takes the weight's place, and the second weight is its copy.
Restoring subtracts nothing: in floating point W + change - change is not W.

A batch may mix LoRAs: then updates run next to unpatched weights, per row. Text encoders, which run once per prompt,
use patched copies of the weights, one layer at a time.

Factors and weights go between device and host in few large pieces: copying hundreds of layers one by one from pageable
memory takes ten times as long.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.families.row_updates import Forward, LowRankUpdate, PerSampleAdapters, replaced
from pentimento.diffusion.host_memory import copies, host_buffers, packed_bytes, places
from pentimento.diffusion.loras.lora import (
    AdapterSet,
    LayerChange,
    LowRankFactors,
    changes_by_module,
    difference,
    joined,
    set_key,
)


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


class SecondWeights:
    """Hold a second weight in host memory for each weight, with unchanged strides: of a CPU's with any content, of a
    CUDA device's with the same one, which is valid for users of the device's current stream."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}

    @torch.inference_mode(mode=False)  # no other mode could change them
    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Add those of the weights that have none yet."""
        new = {name: weight for name, weight in weights.items() if name not in self.by_name}
        if not new:
            return
        on_cpu = next(iter(new.values())).device.type == "cpu"
        memory = host_buffers(is_read_by_device=not on_cpu).take(packed_bytes(new.values()))
        made = (places if on_cpu else copies)(memory, new.values())
        # All or none: an incomplete copy must never be restored.
        self.by_name |= dict(zip(new, made, strict=True))


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
        self._second = SecondWeights()
        # The original weights of patched layers.
        self._patched: dict[str, Tensor] = {}

    @property
    def held(self) -> AdapterSet:
        """Return the set that is in the weights."""
        return self._held

    @property
    def saved_bytes(self) -> int:
        """Return the host memory in bytes of the second weights: of all layers that were ever patched."""
        return sum(second.nbytes for second in self._second.by_name.values())

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
        for name in tuple(self._patched):
            self._restore(name)
        weights = {name: self._weight(name).detach() for name in parts}
        self._second.add(weights)
        there = FactorsThere(next(self._network.parameters()).device)
        for name, changes in parts.items():
            weight, second = weights[name], self._second.by_name[name]
            if weight.device.type == "cpu":
                _add_all(weight, changes, there, out=second)
                self._patched[name], self._weight(name).data = weight, second
            else:
                self._patched[name] = second
                _add_all(weight, changes, there, out=weight)
        self._changed()

    def _restore(self, name: str) -> None:
        original, weight = self._patched[name], self._weight(name)
        if weight.device.type == "cpu":
            weight.data = original
        else:
            weight.detach().copy_(original, non_blocking=True)
        del self._patched[name]

    def _weight(self, name: str) -> Tensor:
        weight = self._network.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        return weight


def patched_copies(network: nn.Module, component: str, adapters: AdapterSet) -> AbstractContextManager[None]:
    """Run linear layers of `network` with the set in their weights while the context is open, with the bits of
    `WeightPatch`. Each weight is copied only for the duration of its product, so nothing needs restoring."""
    changes = {network.get_submodule(name): parts for name, parts in changes_by_module(adapters, component).items()}

    def forward(layer: nn.Module, plain: Forward, inputs: Tensor) -> Tensor:
        assert isinstance(layer, nn.Linear), "text encoders have no other layers that LoRAs change"
        patched = torch.empty_like(layer.weight)
        _add_all(layer.weight.detach(), changes[layer], FactorsThere(patched.device), out=patched)
        return functional.linear(inputs, patched, layer.bias)

    return replaced(changes, forward)


def _add_all(weight: Tensor, changes: Sequence[tuple[LayerChange, float]], there: FactorsThere, out: Tensor) -> None:
    """Set `out`, which may be the weight itself, to the weight with the changes of its layer, added in order."""
    low_rank = [(change, strength) for change, strength in changes if isinstance(change, LowRankFactors)]
    if len(low_rank) == len(changes):
        return _add(low_rank, weight, there, out)
    # DoRA's depend on the weight before the first one.
    base = weight.clone() if out is weight and len(changes) > 1 else weight
    for change, strength in changes:
        torch.add(weight, difference(change, strength, base, there.tensor), out=out)
        weight = out


def _add(factors: Sequence[tuple[LowRankFactors, float]], weight: Tensor, there: FactorsThere, out: Tensor) -> None:
    """Add low-rank changes to a weight, rounding as PEFT's merge does: a product, then its scale, then the sum. A
    convolution's weight is also a matrix: (outputs, inputs * height * width)."""
    matrices = [(*there.matrices(one), one.scale * strength) for one, strength in factors]
    width = weight[0].numel()
    row_count = min(_rows_at_once(width), len(weight)) if weight.device.type == "cpu" else len(weight)
    room = matrices[0][1].new_empty((row_count, width))
    for start in range(0, len(weight), row_count):
        rows = slice(start, start + row_count)
        part, target = weight[rows], out[rows]
        for up, down, scale in matrices:
            change = torch.mm(up[rows], down, out=room[: len(part)]).mul_(scale).view(part.shape)
            # torch adds mixed types in single precision: a half-precision weight is rounded only after each sum.
            part = torch.add(part, change, out=target)


def _rows_at_once(width: int) -> int:
    """Return a number of rows with a change that fits a processor's cache, in 0.7 of the time that main memory takes.
    Multiples of 64 keep the product's bits, which depend on the split."""
    return max(_CACHED_BYTES // (width * torch.float32.itemsize) // _ROWS * _ROWS, _ROWS)


_KEPT_SETS = 16


def row_updates(
    adapters: AdapterSet, component: str, device: torch.device, dtype: torch.dtype
) -> PerSampleAdapters | None:
    """Return the set's updates of a component as one row on `device`. Returns None if the set does not change it. Every
    change must be low-rank (`lora.patched_key`)."""
    updates = {}
    for name, changes in sorted(changes_by_module(adapters, component).items()):
        factors = [(change, weight) for change, weight in changes if isinstance(change, LowRankFactors)]
        assert len(factors) == len(changes), "the engine patches other changes"
        down, up = joined(factors)
        updates[name] = LowRankUpdate(down.to(device, dtype)[None], up.to(device, dtype)[None])
    return PerSampleAdapters(updates) if updates else None


class RowUpdates:
    """Cache the rows of recently used sets on the model's device. Use from one thread only."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._rows: OrderedDict[tuple[str, tuple[tuple[str, float], ...]], PerSampleAdapters | None] = OrderedDict()

    def of(self, adapters: AdapterSet, component: str) -> PerSampleAdapters | None:
        """Return `row_updates` of the set, the same object while it is cached."""
        key = (component, set_key(adapters, component))
        if key in self._rows:
            self._rows.move_to_end(key)
            return self._rows[key]
        row = row_updates(adapters, component, self._device, self._dtype)
        self._rows[key] = row
        while len(self._rows) > _KEPT_SETS:
            self._rows.popitem(last=False)
        return row

    def forget_but(self, used: Sequence[PerSampleAdapters | None]) -> bool:
        """Drop the cached rows that are not in `used`. Return whether any were dropped."""
        others = [key for key, row in self._rows.items() if row is not None and not any(row is one for one in used)]
        for key in others:
            del self._rows[key]
        return bool(others)


def stack_adapters(parts: Sequence[PerSampleAdapters | None], rows_each: int) -> PerSampleAdapters | None:
    """Return the adapters of all rows, with each request's row repeated `rows_each` times. Ranks are padded with zeros
    to the highest. A layer's update spans the rows from the first request that changes it to the last. Returns None if
    no part has adapters."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    names = sorted({name for part in present for name in part.updates})
    return PerSampleAdapters({name: _stack_updates(parts, name, rows_each) for name in names})


def _stack_updates(parts: Sequence[PerSampleAdapters | None], name: str, rows_each: int) -> LowRankUpdate:
    updates = [part.updates.get(name) if part is not None else None for part in parts]
    present = {slot: update for slot, update in enumerate(updates) if update is not None}
    first, last, some = min(present), max(present), next(iter(present.values()))
    rank = max(update.down.shape[1] for update in present.values())
    row_count = (last + 1 - first) * rows_each
    down = some.down.new_zeros((row_count, rank, *some.down.shape[2:]))
    up = some.up.new_zeros((row_count, some.up.shape[1], rank))
    for slot, update in present.items():
        rows = slice((slot - first) * rows_each, (slot + 1 - first) * rows_each)
        down[rows, : update.down.shape[1]] = update.down
        up[rows, :, : update.up.shape[2]] = update.up
    return LowRankUpdate(down, up, first * rows_each)
