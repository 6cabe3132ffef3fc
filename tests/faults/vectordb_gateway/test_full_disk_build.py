"""Fill a real disk while the index is rebuilt: the build is lost, the index is not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.stores.vectors import Space, VectorPoint, VectorQuery
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.index_building import IndexBuilding
from pentimento.stores.vectors.shard_process import ShardTiming
from tests.support.searches import search_now
from tests.support.small_disks import mounted_tmpfs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

SIZE_BYTES = 512 * 1024 * 1024
LEFT_BYTES = 1024 * 1024
BUILDING = IndexBuilding(least_points_count=500, unindexed_share=0.5, first_retry_s=0.2, max_retry_s=0.2, yields=False)
VECTOR = b"\0\0\x80?" + b"\0" * 28


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of half a gibibyte: an empty shard needs tens of megabytes for its log of writes."""
    with mounted_tmpfs(tmp_path, SIZE_BYTES) as mount:
        yield mount


def test_build_on_full_disk_fails_alone(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Skip the check of free space, so that the disk fills during the build.
    monkeypatch.setattr("pentimento.stores.vectors.rebuild.needed_room_bytes", lambda *_: 0)
    ballast = small_disk / "ballast"

    def fill(phase: str) -> None:
        if phase == "copy" and not ballast.exists():
            free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free - LEFT_BYTES)

    index = EdgeVectorIndex(small_disk / "index", ShardTiming(first_restart_s=0.05), BUILDING, fill)
    index.prepare(8)
    ids = [f"00000000-0000-4000-8000-{number:012d}" for number in range(600)]
    index.upsert([VectorPoint(each, "t", ("k",), 1.0, VECTOR) for each in ids])
    assert index.schedule is not None
    schedule = index.schedule
    wait_until(lambda: schedule.failures_count > 0)

    assert schedule.builds_count == 0
    assert len(search_now(index, VectorQuery(Space.TEXT, VECTOR, ("t",), ("k",), 5))) == 5
    ballast.write_bytes(b"")
    wait_until(lambda: schedule.builds_count > 0)
    assert set(index.entry_ids()) == set(ids)
    index.close()
