"""Build LoRA updates that run next to unpatched weights, for one row and for the rows of a batch."""

from collections import OrderedDict
from collections.abc import Sequence

import torch

from pentimento.diffusion.families.row_updates import LowRankUpdate, PerSampleAdapters
from pentimento.diffusion.loras.changes import LowRankFactors
from pentimento.diffusion.loras.lora import AdapterSet, changes_by_module, joined, set_key

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
