"""Shared memory: made, mapped by another process, kept for the next stream, and gone with its holders."""

import errno
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.outgoing import outgoing
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, open_receiver
from pentimento.tensors.regions import MAX_REGION_BYTES, PAGE_BYTES, KeptRegions, RegionDirectory, RegionSize
from pentimento.tensors.sending import TensorSender, open_sender, transport_offer
from pentimento.wire.tensors import Binding, Dtype, WireTensor
from tests.support.open_files import files_open_under

SIZE = RegionSize(slot_size_bytes=100, slot_count=3)


def test_both_ends_see_the_same_bytes(directory: RegionDirectory) -> None:
    ours = directory.create(SIZE)
    theirs = directory.open(ours.region_id, SIZE)

    ours.slot(2)[:5] = b"hello"

    assert bytes(theirs.slot(2)[:5]) == b"hello"
    assert bytes(theirs.slot(1)[:5]) == bytes(5)


@pytest.mark.parametrize("opened", [True, False])
def test_name_disappears_once_opened_or_with_maker(directory: RegionDirectory, opened: bool) -> None:
    ours = directory.create(SIZE)
    assert directory.region_count() == 1

    if opened:
        directory.open(ours.region_id, SIZE)
    else:
        ours.close()

    assert directory.region_count() == 0


def test_a_region_that_its_maker_loses_gives_up_name_and_descriptor(directory: RegionDirectory) -> None:
    directory.create(SIZE)
    gc.collect()

    assert directory.region_count() == 0
    assert files_open_under(directory.path) == []


def test_region_of_killed_maker_is_removed_by_next(tmp_path: Path, directory: RegionDirectory) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from pentimento.tensors.regions import *; "
        "region = RegionDirectory(Path(sys.argv[1])).create(RegionSize(100, 3)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "shared")], check=False)
    assert directory.region_count() == 1

    kept = directory.create(SIZE)

    assert directory.region_count() == 1
    assert directory.open(kept.region_id, SIZE).region_id == kept.region_id


def test_sweep_leaves_held_region(directory: RegionDirectory) -> None:
    held = directory.create(SIZE)

    assert directory.sweep() == 0
    assert directory.open(held.region_id, SIZE).region_id == held.region_id


def test_open_refuses_names_that_are_paths(directory: RegionDirectory) -> None:
    for name in ("", "../x", "a" * 31, "A" * 32, "0" * 32 + "\n", "%2e%2e/" + "0" * 25):
        with pytest.raises(InvalidArgument):
            directory.open(name, SIZE)


def test_open_refuses_another_size_and_links(tmp_path: Path, directory: RegionDirectory) -> None:
    ours, target = directory.create(SIZE), tmp_path / "target"
    target.write_bytes(bytes(SIZE.total_bytes))
    (tmp_path / "shared" / ("0" * 32)).symlink_to(target)

    with pytest.raises(FailedPrecondition):
        directory.open(ours.region_id, RegionSize(100 + PAGE_BYTES, 3))
    with pytest.raises(FailedPrecondition):
        directory.open("0" * 32, SIZE)


def test_without_space_there_is_no_region(directory: RegionDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(ResourceExhausted) as caught:
        directory.create(SIZE)

    assert (caught.value.reason, directory.region_count()) == ("NO_SHARED_MEMORY", 0)
    assert files_open_under(directory.path) == []


def test_region_that_cannot_be_mapped_is_reported_as_missing(
    directory: RegionDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = directory.create(SIZE)
    before = files_open_under(directory.path)

    def refuse(*given: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(FailedPrecondition) as caught:
        directory.open(ours.region_id, SIZE)

    assert (caught.value.reason, files_open_under(directory.path)) == ("NO_SUCH_REGION", before)


def test_domain_is_of_a_private_directory(tmp_path: Path, directory: RegionDirectory) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)

    assert directory.domain() == RegionDirectory(tmp_path / "shared").domain() != ""
    assert RegionDirectory(tmp_path / "other").domain() != directory.domain()
    assert RegionDirectory(tmp_path / "open").domain() == ""
    assert RegionDirectory(tmp_path / "absent" / "twice").domain() == ""


def test_region_size_is_within_bounds() -> None:
    assert RegionSize(MAX_REGION_BYTES // 4, 4).total_bytes == MAX_REGION_BYTES
    for size in ((0, 1), (1, 0), (-1, 1), (1 << 40, 1), (1 << 20, 1 << 20)):
        with pytest.raises(InvalidArgument):
            RegionSize(*size)


KEPT_SIZES = [64 * 1024]
KEPT_SIZE = RegionSize(100, 2)


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
    first, sender, receiver = opened(asking, answering, KEPT_SIZES)
    old = sender.in_one_slot([])
    sender.close(answering.kept)
    receiver.close(asking.kept)

    second, sender, receiver = opened(asking, answering, KEPT_SIZES)

    assert second == first and old is not None
    expected = ExpectedTensor(Dtype.UINT8, (KEPT_SIZES[0],), Binding("second"))
    slot = sender.in_one_slot(
        [outgoing(WireTensor(Dtype.UINT8, (KEPT_SIZES[0],), b"2" * KEPT_SIZES[0], expected.binding))]
    )
    assert slot is not None
    assert bytes(receiver.from_one_slot(slot, [expected]).tensors[0].data) == b"2" * KEPT_SIZES[0]
    assert answering.region_count() == 0


@pytest.mark.parametrize("why", ["another size", "another caller", "in use", "the other end let go"])
def test_another_stream_has_its_own(path: Path, why: str) -> None:
    asking, answering = RegionDirectory(path), RegionDirectory(path)
    first, sender, receiver = opened(asking, answering, KEPT_SIZES)
    if why != "in use":
        sender.close(answering.kept)
        receiver.close(None if why == "the other end let go" else asking.kept)
    sizes = [128 * 1024] if why == "another size" else KEPT_SIZES
    caller = RegionDirectory(path) if why == "another caller" else asking

    second, _, _ = opened(caller, answering, sizes)

    assert second != first


def test_a_region_that_the_other_end_never_mapped_is_not_kept(path: Path) -> None:
    asking, answering = RegionDirectory(path), RegionDirectory(path)
    sender, region = open_sender(transport_offer(asking), answering, KEPT_SIZES)
    assert region is not None

    sender.close(answering.kept)

    assert answering.kept.region_ids == [] and answering.region_count() == 0


def test_kept_region_is_dropped_after_time_limit(path: Path) -> None:
    now = 0.0
    kept, directory = KeptRegions(10.0, monotonic=lambda: now), RegionDirectory(path)
    first, second = directory.create(KEPT_SIZE), directory.create(KEPT_SIZE)
    kept.give(first)
    now = 6.0
    kept.give(second)

    now = 10.0
    kept.expire()

    assert kept.region_ids == [second.region_id]
    assert first.memory.closed and not second.memory.closed


def test_the_oldest_go_where_there_is_too_much(path: Path) -> None:
    directory = RegionDirectory(path)
    regions = [directory.create(KEPT_SIZE) for _ in range(3)]
    kept = KeptRegions(most_bytes=2 * KEPT_SIZE.total_bytes)

    for region in regions:
        kept.give(region)

    assert kept.region_ids == [region.region_id for region in regions[1:]]
    assert regions[0].memory.closed


def test_a_region_is_taken_once(path: Path) -> None:
    kept, region = KeptRegions(), RegionDirectory(path).create(KEPT_SIZE)
    kept.give(region)

    assert kept.take([region.region_id], RegionSize(100, 3)) is None
    assert kept.take([region.region_id], KEPT_SIZE) is region
    assert kept.take([region.region_id], KEPT_SIZE) is None
