"""A bundle that is written to one slot in parts, and read as they come: each follows the one before it, once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.tensors.outgoing import HEADER_BYTES, SlotReader, SlotWriter, layout_of, outgoing
from pentimento.tensors.receiving import BundleInParts, ExpectedTensor, TensorReceiver
from pentimento.tensors.regions import RegionDirectory, RegionSize
from pentimento.tensors.sending import SlotInParts, TensorSender
from pentimento.wire.tensors import UNBOUND, Dtype, WireTensor

# None a multiple of the alignment.
SIZES = (100, 30, 70, 65)
BUNDLE = layout_of(SIZES)
TENSORS = [
    outgoing(WireTensor(Dtype.UINT8, (size,), bytes([number]) * size, UNBOUND)) for number, size in enumerate(SIZES)
]
EXPECTED = [ExpectedTensor(Dtype.UINT8, (size,), UNBOUND) for size in SIZES]


@dataclass
class Ends:
    """Both ends of a region of two slots."""

    sender: TensorSender
    receiver: TensorReceiver

    def begin(self) -> SlotInParts:
        found = self.sender.in_parts(BUNDLE)
        assert found is not None
        return found


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    tmp_path.chmod(0o700)
    directory = RegionDirectory(tmp_path)
    region = directory.create(RegionSize(HEADER_BYTES + BUNDLE.size_bytes, 2))
    mapped = directory.open(region.region_id, region.size)
    ends = Ends(TensorSender(SlotWriter(region)), TensorReceiver(SlotReader(mapped)))
    yield ends
    ends.sender.close()
    ends.receiver.close()


def test_tensors_that_reach_beyond_their_slot_are_refused(ends: Ends) -> None:
    begun = ends.begin().add(TENSORS)
    begun.size_bytes = BUNDLE.size_bytes + 1

    with pytest.raises(InvalidArgument, match="must lie within its slot"):
        ends.receiver.from_one_slot(begun, [ExpectedTensor(Dtype.UINT8, (begun.size_bytes,), UNBOUND)])


def parts_of(begun: SlotInParts) -> list[pb.SharedMemorySlot]:
    """Return slots of one tensor, of two, and of the last."""
    return [begun.add(TENSORS[:1]), begun.add(TENSORS[1:3]), begun.add(TENSORS[3:])]


def refused(bundle: BundleInParts, slot: pb.SharedMemorySlot, more_to_come: bool) -> None:
    with pytest.raises(Aborted) as caught:
        bundle.add(slot, more_to_come)
    assert caught.value.reason == "STALE_FRAME"


def test_each_part_has_all_tensors_so_far_and_last_releases_slot(ends: Ends) -> None:
    begun, bundle = ends.begin(), ends.receiver.in_parts(EXPECTED)

    found = []
    for first, stop in ((0, 1), (1, 3), (3, 4)):
        found.append(bundle.add(begun.add(TENSORS[first:stop]), stop < 4))

    assert [(len(one.tensors), one.awaited_count, one.ack is not None) for one in found] == [
        (1, 3, False),
        (3, 1, False),
        (4, 0, True),
    ]
    assert [bytes(wire.data) for wire in found[2].tensors] == [
        bytes([number]) * size for number, size in enumerate(SIZES)
    ]
    assert bytes(found[0].tensors[0].data) == b"\0" * 100  # as it was, while the others came
    assert found[2].ack is not None
    ends.sender.acknowledged(found[2].ack)


def test_part_of_other_slot_or_without_beginning_is_stale(ends: Ends) -> None:
    (first, _, _), (other, second, _) = parts_of(ends.begin()), parts_of(ends.begin())

    bundle = ends.receiver.in_parts(EXPECTED)
    bundle.add(first, True)
    refused(bundle, second, True)
    refused(ends.receiver.in_parts(EXPECTED), first, True)  # it was read before
    assert ends.receiver.in_parts(EXPECTED).add(other, True).awaited_count == 3


@pytest.mark.parametrize(
    ("order", "more_to_come"),
    [
        ([1], True),
        ([0, 0], True),
        ([0, 2], False),
        ([0, 1, 1], True),
        ([0, 1, 0], True),
        ([0, 1, 2, 2], False),
        ([0], False),
        ([0, 1, 2], True),
    ],
)
def test_part_that_does_not_follow_or_ends_wrongly_is_stale(ends: Ends, order: list[int], more_to_come: bool) -> None:
    parts, bundle = parts_of(ends.begin()), ends.receiver.in_parts(EXPECTED)
    for number in order[:-1]:
        bundle.add(parts[number], number < 2)

    refused(bundle, parts[order[-1]], more_to_come)


def test_a_slot_that_was_written_over_between_its_parts_is_stale(ends: Ends) -> None:
    parts, bundle = parts_of(ends.begin()), ends.receiver.in_parts(EXPECTED)
    bundle.add(parts[0], True)
    slot = parts[0]
    ends.sender.acknowledged(pb.SharedMemoryAck(region_id=slot.region_id, slot=slot.slot, generation=slot.generation))
    ends.begin()
    ends.begin()  # the other slot is taken before

    refused(bundle, parts[1], True)


def test_parts_need_a_region() -> None:
    with pytest.raises(InvalidArgument):
        TensorReceiver().in_parts(EXPECTED)
