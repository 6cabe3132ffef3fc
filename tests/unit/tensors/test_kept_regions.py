"""Regions that the next stream takes over: only between the two that had them, only of its size, and not for ever."""

from pathlib import Path

import pytest

from pentimento.tensors.kept_regions import KeptRegions
from pentimento.tensors.negotiation import transport_offer
from pentimento.tensors.outgoing import outgoing
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory, RegionSize
from pentimento.tensors.sending import TensorSender, open_sender
from pentimento.wire.tensors import Binding, Dtype, WireTensor

SIZES = [64 * 1024]
SIZE = RegionSize(100, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir(mode=0o700)
    return tmp_path / "shared"


def opened(
    asking: RegionDirectory, answering: RegionDirectory, sizes: list[int]
) -> tuple[str, TensorSender, TensorReceiver]:
    sender, region = open_sender(transport_offer(asking), answering, sizes)
    assert region is not None
    receiver, told = open_receiver(region, asking)
    assert told is not None and told.opened
    sender.region_opened(told)
    return region.region_id, sender, receiver


def test_the_next_stream_of_the_same_two_has_the_region_of_the_last(path: Path) -> None:
    asking, answering = RegionDirectory(path), RegionDirectory(path)
    first, sender, receiver = opened(asking, answering, SIZES)
    old = sender.in_one_slot([])
    sender.close(answering.kept)
    receiver.close(asking.kept)

    second, sender, receiver = opened(asking, answering, SIZES)

    assert second == first and old is not None
    expected = ExpectedTensor(Dtype.UINT8, (SIZES[0],), Binding("second"))
    slot = sender.in_one_slot([outgoing(WireTensor(Dtype.UINT8, (SIZES[0],), b"2" * SIZES[0], expected.binding))])
    assert slot is not None
    assert bytes(receiver.from_one_slot(slot, [expected]).tensors[0].data) == b"2" * SIZES[0]
    assert answering.region_count() == 0


@pytest.mark.parametrize("why", ["another size", "another caller", "in use", "the other end let go"])
def test_another_stream_has_its_own(path: Path, why: str) -> None:
    asking, answering = RegionDirectory(path), RegionDirectory(path)
    first, sender, receiver = opened(asking, answering, SIZES)
    if why != "in use":
        sender.close(answering.kept)
        receiver.close(None if why == "the other end let go" else asking.kept)
    sizes = [128 * 1024] if why == "another size" else SIZES
    caller = RegionDirectory(path) if why == "another caller" else asking

    second, _, _ = opened(caller, answering, sizes)

    assert second != first


def test_a_region_that_the_other_end_never_mapped_is_not_kept(path: Path) -> None:
    asking, answering = RegionDirectory(path), RegionDirectory(path)
    sender, region = open_sender(transport_offer(asking), answering, SIZES)
    assert region is not None

    sender.close(answering.kept)

    assert answering.kept.region_ids == [] and answering.region_count() == 0


def test_what_was_kept_for_long_enough_goes(path: Path) -> None:
    now = 0.0
    kept, directory = KeptRegions(10.0, monotonic=lambda: now), RegionDirectory(path)
    first, second = directory.create(SIZE), directory.create(SIZE)
    kept.give(first)
    now = 6.0
    kept.give(second)

    now = 10.0
    kept.expire()

    assert kept.region_ids == [second.region_id]
    assert first.memory.closed and not second.memory.closed


def test_the_oldest_go_where_there_is_too_much(path: Path) -> None:
    directory = RegionDirectory(path)
    regions = [directory.create(SIZE) for _ in range(3)]
    kept = KeptRegions(most_bytes=2 * SIZE.total_bytes)

    for region in regions:
        kept.give(region)

    assert kept.region_ids == [region.region_id for region in regions[1:]]
    assert regions[0].memory.closed


def test_a_region_is_taken_once(path: Path) -> None:
    kept, region = KeptRegions(), RegionDirectory(path).create(SIZE)
    kept.give(region)

    assert kept.take([region.region_id], RegionSize(100, 3)) is None
    assert kept.take([region.region_id], SIZE) is region
    assert kept.take([region.region_id], SIZE) is None
