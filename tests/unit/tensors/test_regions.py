"""Shared memory: made, mapped by another process, and gone whoever dies."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.regions import MAX_REGION_BYTES, PAGE_BYTES, RegionDirectory, RegionSize
from tests.support.open_files import files_open_under

SIZE = RegionSize(slot_size_bytes=100, slot_count=3)


def test_both_ends_see_the_same_bytes(directory: RegionDirectory) -> None:
    ours = directory.create(SIZE)
    theirs = directory.open(ours.region_id, SIZE)

    ours.slot(2)[:5] = b"hello"

    assert bytes(theirs.slot(2)[:5]) == b"hello"
    assert bytes(theirs.slot(1)[:5]) == bytes(5)


def test_the_name_goes_as_soon_as_both_have_it_open(directory: RegionDirectory) -> None:
    ours = directory.create(SIZE)
    assert directory.region_count() == 1

    directory.open(ours.region_id, SIZE)

    assert directory.region_count() == 0


def test_a_region_that_nobody_opened_goes_with_its_maker(directory: RegionDirectory) -> None:
    directory.create(SIZE).close()

    assert directory.region_count() == 0


def test_a_region_that_its_maker_loses_gives_up_name_and_descriptor(directory: RegionDirectory) -> None:
    directory.create(SIZE)
    gc.collect()

    assert directory.region_count() == 0
    assert files_open_under(directory.path) == []


def test_what_a_killed_maker_left_is_removed_by_the_next(tmp_path: Path, directory: RegionDirectory) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from pentimento.tensors.regions import *; "
        "region = RegionDirectory(Path(sys.argv[1])).create(RegionSize(100, 3)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "shared")], check=False)
    assert directory.region_count() == 1

    kept = directory.create(SIZE)

    assert directory.region_count() == 1
    assert directory.open(kept.region_id, SIZE).region_id == kept.region_id


def test_a_sweep_leaves_what_its_maker_still_holds(directory: RegionDirectory) -> None:
    held = directory.create(SIZE)

    assert directory.sweep() == 0
    assert directory.open(held.region_id, SIZE).region_id == held.region_id


@pytest.mark.parametrize("name", ["", "../x", "a" * 31, "A" * 32, "0" * 32 + "\n", "%2e%2e/" + "0" * 25])
def test_a_name_is_never_a_path(directory: RegionDirectory, name: str) -> None:
    with pytest.raises(InvalidArgument):
        directory.open(name, SIZE)


def test_a_region_of_another_size_is_not_mapped(directory: RegionDirectory) -> None:
    ours = directory.create(SIZE)

    with pytest.raises(FailedPrecondition):
        directory.open(ours.region_id, RegionSize(100 + PAGE_BYTES, 3))


def test_a_link_is_not_followed(tmp_path: Path, directory: RegionDirectory) -> None:
    target = tmp_path / "target"
    target.write_bytes(bytes(SIZE.total_bytes))
    (tmp_path / "shared" / ("0" * 32)).symlink_to(target)

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


def test_a_directory_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)

    assert RegionDirectory(tmp_path / "open").domain() == ""
    assert RegionDirectory(tmp_path / "absent" / "twice").domain() == ""


def test_a_directory_is_known_by_itself(tmp_path: Path, directory: RegionDirectory) -> None:
    (tmp_path / "other").mkdir(mode=0o700)

    assert directory.domain() == RegionDirectory(tmp_path / "shared").domain() != ""
    assert RegionDirectory(tmp_path / "other").domain() != directory.domain()


@pytest.mark.parametrize("size", [(0, 1), (1, 0), (-1, 1), (1 << 40, 1), (1 << 20, 1 << 20)])
def test_no_region_is_of_no_size_or_of_any_size(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument):
        RegionSize(*size)


def test_a_region_may_be_as_large_as_the_bound_says() -> None:
    assert RegionSize(MAX_REGION_BYTES // 4, 4).total_bytes == MAX_REGION_BYTES
