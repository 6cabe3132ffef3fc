"""Snapshots of the embedded index: whole, of one moment, and restored in one step or not at all."""

import json
import threading
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.vectors.snapshots import empty_index, read_manifest, restore_snapshot
from tests.contract.stores.test_index_rebuild import (
    BUILDING,
    DIMENSION_COUNT,
    NEVER,
    TIMEOUT_S,
    built,
    clustered,
    directories,
    id_of,
    opened,
    points_at,
    query,
    wait_until,
)

VECTORS = clustered(500)


def filled(directory: Path, count: int = 500) -> None:
    index = opened(directory, NEVER)
    index.upsert(points_at(VECTORS[:count]))
    index.close()


def test_a_snapshot_is_restored_with_every_point(tmp_path: Path) -> None:
    index = opened(tmp_path / "index", NEVER)
    index.upsert(points_at(VECTORS))
    taken = index.snapshot(tmp_path / "snapshot")
    index.delete([id_of(number) for number in range(400)])
    index.close()

    restored = restore_snapshot(tmp_path / "snapshot", tmp_path / "index")

    index = opened(tmp_path / "index", NEVER)
    assert taken == restored
    assert set(index.entry_ids()) == {id_of(number) for number in range(500)}
    (found,) = index.search(query(VECTORS[7], limit=1), TIMEOUT_S)
    assert (found.entry_id, found.similarity > 0.9999) == (id_of(7), True)
    assert len(directories(tmp_path / "index")) == 1
    index.close()


def test_a_snapshot_can_be_restored_elsewhere_and_is_built_there(tmp_path: Path) -> None:
    first = opened(tmp_path / "index", NEVER)
    first.upsert(points_at(clustered(1200)))
    first.snapshot(tmp_path / "snapshot")
    first.close()

    restore_snapshot(tmp_path / "snapshot", tmp_path / "other")

    second = opened(tmp_path / "other", BUILDING)
    wait_until(lambda: built(second) == 1)
    assert len(set(second.entry_ids())) == 1200
    second.close()


def test_what_is_written_while_a_snapshot_is_taken_is_in_it_or_came_after(tmp_path: Path) -> None:
    index = opened(tmp_path / "index", NEVER)
    index.upsert(points_at(VECTORS))
    written: list[int] = []
    over = threading.Event()

    def write() -> None:
        number = 10_000
        while not over.is_set():
            index.upsert(points_at(VECTORS[:1], first=number))
            written.append(number)
            number += 1

    writing = threading.Thread(target=write)
    writing.start()
    wait_until(lambda: len(written) > 5)
    before = len(written)
    index.snapshot(tmp_path / "snapshot")
    after = len(written)
    over.set()
    writing.join()
    index.close()

    restore_snapshot(tmp_path / "snapshot", tmp_path / "other")
    other = opened(tmp_path / "other", NEVER)
    found = set(other.entry_ids())
    other.close()
    assert found >= {id_of(number) for number in (*range(500), *written[:before])}
    assert found <= {id_of(number) for number in (*range(500), *written[: after + 1])}


def test_a_snapshot_never_takes_the_place_of_something(tmp_path: Path) -> None:
    index = opened(tmp_path / "index", NEVER)
    (tmp_path / "snapshot").mkdir()

    with pytest.raises(InvalidArgument):
        index.snapshot(tmp_path / "snapshot")

    index.close()


def test_a_snapshot_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentimento.stores.vectors.snapshots.copy_all", lambda source, target: None)
    index = opened(tmp_path / "index", NEVER)
    index.upsert(points_at(VECTORS))

    with pytest.raises(StoreUnavailable, match="0 points, not 500"):
        index.snapshot(tmp_path / "snapshot")

    assert directories(tmp_path) == {"index"}
    index.close()


def test_an_index_that_is_served_is_not_restored(tmp_path: Path) -> None:
    index = opened(tmp_path / "index", NEVER)
    index.upsert(points_at(VECTORS))
    index.snapshot(tmp_path / "snapshot")

    with pytest.raises(StoreUnavailable, match="another process"):
        restore_snapshot(tmp_path / "snapshot", tmp_path / "index", timeout_s=0.0)
    with pytest.raises(StoreUnavailable, match="another process"):
        empty_index(tmp_path / "index", DIMENSION_COUNT, timeout_s=0.0)

    assert len(set(index.entry_ids())) == 500
    index.close()


@pytest.mark.parametrize(
    "wrong", ["", "[]", json.dumps({"format": "v2", "dimension_count": 32, "points_count": 1, "taken_at": 1.0})]
)
def test_what_is_no_snapshot_changes_nothing(tmp_path: Path, wrong: str) -> None:
    filled(tmp_path / "index", 10)
    (tmp_path / "snapshot" / "shard").mkdir(parents=True)
    (tmp_path / "snapshot" / "snapshot.json").write_text(wrong)

    with pytest.raises(SchemaMismatch):
        restore_snapshot(tmp_path / "snapshot", tmp_path / "index")
    with pytest.raises(SchemaMismatch):
        read_manifest(tmp_path / "nowhere")

    index = opened(tmp_path / "index", NEVER)
    assert len(set(index.entry_ids())) == 10
    index.close()


def test_a_restore_that_fails_half_way_leaves_the_index_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path / "index", NEVER)
    index.upsert(points_at(VECTORS[:10]))
    index.snapshot(tmp_path / "snapshot")
    index.upsert(points_at(VECTORS[10:20], first=10))
    index.close()

    def full(self: object, generation: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pentimento.stores.vectors.generations.Generations.publish", full)
    with pytest.raises(OSError, match="No space"):
        restore_snapshot(tmp_path / "snapshot", tmp_path / "index")

    index = opened(tmp_path / "index", NEVER)
    assert len(set(index.entry_ids())) == 20
    assert directories(tmp_path / "index") == {f"v1-d{DIMENSION_COUNT}"}
    index.close()


def test_an_emptied_index_can_be_filled_again(tmp_path: Path) -> None:
    filled(tmp_path / "index")

    empty_index(tmp_path / "index", DIMENSION_COUNT)

    index = opened(tmp_path / "index", NEVER)
    assert list(index.entry_ids()) == []
    index.upsert(points_at(VECTORS))
    assert len(set(index.entry_ids())) == 500
    index.close()
