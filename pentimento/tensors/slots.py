"""Manage slots of a shared region. Each slot holds the tensors of one message for one generation: written once, read,
acknowledged, written again."""

from dataclasses import dataclass, field

from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.tensors.outgoing import ALIGNMENT_BYTES
from pentimento.tensors.regions import Region
from pentimento.wire.tensors import DeviceBytes

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
