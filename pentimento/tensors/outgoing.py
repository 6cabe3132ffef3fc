"""Lay out tensors to send, one after the other, and write them, also to slots of a shared region. Each slot holds the
tensors of one message for one generation: written once, read, acknowledged, written again."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.telemetry import counter
from pentimento.tensors.regions import Region
from pentimento.wire.tensors import Binding, DeviceBytes, Dtype, WireTensor, host_bytes, size_of

SENT_BYTES = counter("pentimento_tensor_sent_bytes_total", "Bytes of sent tensors by transport.", ["transport"])
REGIONS = counter(
    "pentimento_tensor_regions_total",
    "Shared memory regions of streams: created, or kept from earlier streams.",
    ["how"],
)
FALLBACKS = counter(
    "pentimento_tensor_fallbacks_total",
    "Streams or messages that used chunks instead of shared memory (not_shared, "
    "no_space, not_opened, no_free_slot), or gRPC for steps (no_line).",
    ["reason"],
)


# Aligns elements of every type for loads on any processor.
ALIGNMENT_BYTES = 64
# From this size on one processor does not saturate the memory bandwidth: two share the copy.
SHARED_FILL_BYTES = 4 << 20
_HELPER = ThreadPoolExecutor(1, "tensor-copy")


@dataclass(frozen=True)
class OutgoingTensor:
    """Describe a tensor to send. `fill` writes its `size_bytes` bytes, row-major and little-endian, into the given
    memory of the host or a device: the only copy made. With `on_host` it reads only host memory, may run on any thread,
    and releases the interpreter lock."""

    dtype: Dtype
    dims: tuple[int, ...]
    binding: Binding
    fill: Callable[[memoryview | DeviceBytes], None] = field(repr=False)
    on_host: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the tensor's size in bytes."""
        return size_of(self.dtype, self.dims)


def outgoing(tensor: WireTensor) -> OutgoingTensor:
    """Return a tensor to send with bytes in host memory, through host memory."""

    def fill(target: memoryview | DeviceBytes) -> None:
        assert isinstance(target, memoryview), "bytes on the host go through its memory"
        target[:] = host_bytes(tensor)

    return OutgoingTensor(tensor.dtype, tensor.dims, tensor.binding, fill)


@dataclass(frozen=True)
class Layout:
    """Hold the layout of tensors: the offset of each, and the total bytes, padding included."""

    offsets: tuple[int, ...]
    size_bytes: int


def layout_of(sizes: Sequence[int]) -> Layout:
    """Return the layout of tensors of `sizes` bytes, in order, each at a multiple of ALIGNMENT_BYTES."""
    return _layout_of(tuple(sizes))


@lru_cache(maxsize=64)
def _layout_of(sizes: tuple[int, ...]) -> Layout:
    """Return the layout, cached because all steps of a stream have the same one."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(aligned(end))
        end = offsets[-1] + size
    return Layout(tuple(offsets), end)


def aligned(offset: int) -> int:
    """Return the next multiple of ALIGNMENT_BYTES."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def fill_all(tensors: Sequence[OutgoingTensor], layout: Layout, target: memoryview | DeviceBytes) -> None:
    """Write the tensors at their offsets in `target`; large host tensors on two threads if the process may use two
    processors."""
    parts = list(zip(tensors, layout.offsets, strict=True))
    shared = layout.size_bytes >= SHARED_FILL_BYTES and all(tensor.on_host for tensor in tensors)
    if not shared or len(os.sched_getaffinity(0)) < 2:
        return _fill(parts, target)
    own, given_away = _halves(parts)
    helping = _HELPER.submit(_fill, given_away, target)
    try:
        _fill(own, target)
    finally:
        # No thread writes to the target after this returns, even on an error.
        if helping.cancel():
            _fill(given_away, target)
        else:
            helping.result()


Part = tuple[OutgoingTensor, int]


def _fill(parts: Sequence[Part], target: memoryview | DeviceBytes) -> None:
    for tensor, offset in parts:
        tensor.fill(target[offset : offset + tensor.size_bytes])


def _halves(parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """Split the parts into two halves of about the same size in bytes."""
    halves: tuple[list[Part], list[Part]] = ([], [])
    sizes = [0, 0]
    for part in sorted(parts, key=lambda one: -one[0].size_bytes):
        place = 0 if sizes[0] <= sizes[1] else 1
        halves[place].append(part)
        sizes[place] += part[0].size_bytes
    return halves


# A slot holds its generation before its tensors, so that readers detect overwritten data.
HEADER_BYTES = ALIGNMENT_BYTES


@dataclass(frozen=True)
class SlotUse:
    """Hold one use of a slot; `memory` holds its tensors, without the header."""

    slot: int
    generation: int
    memory: memoryview | DeviceBytes = field(repr=False, compare=False)


class SlotWriter:
    """Write to the slots of a region at its sending end."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._free = list(range(region.size.slot_count))
        self._in_use: dict[int, int] = {}
        self._generation = 0

    @property
    def capacity_bytes(self) -> int:
        """Return the largest size in bytes of one message's tensors."""
        return self.region.size.slot_size_bytes - HEADER_BYTES

    def begin(self) -> SlotUse | None:
        """Take a free slot to write to; return None while all slots wait to be acknowledged."""
        if not self._free:
            return None
        self._generation += 1
        slot = self._free.pop(0)
        self._in_use[slot] = self._generation
        # No reader may take half-written data for the generation before.
        self.region.mark(slot, 0)
        return SlotUse(slot, self._generation, self.region.slot(slot)[HEADER_BYTES:])

    def publish(self, use: SlotUse) -> None:
        """Mark the slot as written, in the slot itself."""
        self.region.mark(use.slot, use.generation)

    def acknowledged(self, region_id: str, slot: int, generation: int) -> None:
        """Free a slot. Raises InvalidArgument if it is not in use under that generation."""
        if region_id != self.region.region_id or self._in_use.get(slot) != generation:
            raise InvalidArgument.of("ack", f"must name a slot in use, got slot {slot} generation {generation}")
        del self._in_use[slot]
        self._free.append(slot)


class SlotReader:
    """Read the slots of a region at its receiving end."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._newest: dict[int, int] = {}

    def read(self, region_id: str, slot: int, generation: int) -> SlotUse:
        """Return the use of a slot to read from. Raises InvalidArgument for another region or an unknown slot, and
        Aborted (STALE_FRAME) for a generation that was read already or is not in the slot."""
        if region_id != self.region.region_id or slot >= self.region.size.slot_count:
            raise InvalidArgument.of("shared_memory", f"must name a slot of this stream's region, got slot {slot}")
        if generation <= self._newest.get(slot, 0) or self.region.marked(slot) != generation:
            raise Aborted("STALE_FRAME", f"slot {slot} does not hold generation {generation} (any more)")
        self._newest[slot] = generation
        return SlotUse(slot, generation, self.region.slot(slot)[HEADER_BYTES:])

    def check_same(self, use: SlotUse, region_id: str, slot: int, generation: int) -> None:
        """Raise Aborted (STALE_FRAME) if region, slot and generation differ from `use`, or the slot was overwritten."""
        same = (region_id, slot, generation) == (self.region.region_id, use.slot, use.generation)
        if not same or self.region.marked(slot) != generation:
            raise Aborted("STALE_FRAME", f"slot {slot} generation {generation} is not where this answer began")
