"""Components on a disk that processes share: fetched once and verified always. `test_crash_points` has kills."""

import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.files import file_sums
from pentimento.files.file_sums import CorruptComponent, FileSum, SumInProgress
from pentimento.policies.components import Utility
from pentimento.stores.components import ComponentStore, ObjectRemote
from pentimento.stores.components.remote import put_sums
from pentimento.stores.errors import ObjectCorrupt, StoreFull, StoreUnavailable
from pentimento.stores.objects import ObjectStore, open_objects
from tests.support.small_disks import mounted_tmpfs

BLOCK = file_sums.BLOCK_BYTES
SIZE = 2 * BLOCK + 1000


class CountingRemote:
    """An object store that counts range reads, and answers some as `answer` says."""

    name = "the double"

    def __init__(self, objects: ObjectStore) -> None:
        self._remote = ObjectRemote(objects)
        self.offsets: list[int] = []
        self.answer: Callable[[int, memoryview], None] = lambda offset, buffer: None
        self.serial = threading.Lock()

    def sums(self, reference: ObjectReference) -> FileSum | None:
        return self._remote.sums(reference)

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        with self.serial:
            self.offsets.append(offset)
            self._remote.read_into(reference, offset, buffer)
            self.answer(offset, buffer)


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(1).randbytes(SIZE)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(f"file://{tmp_path / 'objects'}")


@pytest.fixture
def remote(objects: ObjectStore) -> CountingRemote:
    return CountingRemote(objects)


def registered(objects: ObjectStore, data: bytes, key: str = "adapters/one") -> ObjectReference:
    hashing = SumInProgress()
    hashing.add(data)
    return replace(objects.put(key, data), blocks_digest=put_sums(objects, key, hashing.result().blocks))


def opened(folder: Path, disk_bytes: int = 4 * SIZE) -> ComponentStore:
    return ComponentStore(folder / "components", disk_bytes, 0, Utility)


def names(folder: Path, part: str) -> list[str]:
    return sorted(path.name for path in (folder / "components" / part).iterdir())


@pytest.mark.parametrize("with_sums", [True, False])
def test_component_is_fetched_once_and_again_when_its_disk_rots(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes, with_sums: bool
) -> None:
    reference = registered(objects, data) if with_sums else objects.put("adapters/one", data)
    for _ in range(2):
        assert opened(tmp_path).read(reference, remote)[0] == data
    assert sorted(remote.offsets) == [0, BLOCK, 2 * BLOCK]

    (name,) = names(tmp_path, "blobs")
    (tmp_path / "components" / "blobs" / name).chmod(0o600)
    with (tmp_path / "components" / "blobs" / name).open("r+b") as file:
        file.seek(BLOCK + 5)
        file.write(b"rotten")

    assert opened(tmp_path).read(reference, remote)[0] == data
    assert len(remote.offsets) == 6
    assert [kept.split(".")[1] for kept in names(tmp_path, "quarantine")] == [name]


def test_wrong_block_is_quarantined_and_fetched_once_more(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes
) -> None:
    reference = registered(objects, data)
    remote.answer = lambda offset, buffer: (
        flip(offset, buffer) if offset == BLOCK and remote.offsets.count(BLOCK) == 1 else None
    )

    assert opened(tmp_path).read(reference, remote)[0] == data
    assert sorted(remote.offsets) == [0, BLOCK, BLOCK, 2 * BLOCK]
    assert len(names(tmp_path, "quarantine")) == 1


def flip(offset: int, buffer: memoryview) -> None:
    buffer[0] ^= 1


def truncate(offset: int, buffer: memoryview) -> None:
    raise ObjectCorrupt("adapters/one", "expected 1000 bytes of a range, found 3")


def refuse(offset: int, buffer: memoryview) -> None:
    raise StoreUnavailable("object store", "it is away")


@pytest.mark.parametrize(
    ("answer", "with_sums", "error"),
    [
        (flip, True, CorruptComponent),
        (flip, False, CorruptComponent),
        (truncate, True, CorruptComponent),
        (refuse, True, StoreUnavailable),
    ],
)
def test_persistently_wrong_remote_is_named_and_leaves_no_component(
    tmp_path: Path,
    objects: ObjectStore,
    remote: CountingRemote,
    data: bytes,
    answer: Callable[[int, memoryview], None],
    with_sums: bool,
    error: type[PentimentoError],
) -> None:
    other = registered(objects, b"other" * 1000, "adapters/other")
    store = opened(tmp_path)
    store.read(other, remote)
    reference = registered(objects, data) if with_sums else objects.put("adapters/one", data)
    remote.answer = answer

    with pytest.raises(error) as raised:
        store.read(reference, remote)

    if error is CorruptComponent:
        assert reference.digest in raised.value.message
        assert "the double" in raised.value.message
    assert names(tmp_path, "blobs") == [other.digest.removeprefix("sha256:")]
    assert store.read(other, remote)[0] == b"other" * 1000, "the others keep serving"
    remote.answer = lambda offset, buffer: None
    assert store.read(reference, remote)[0] == data


def read_known(folder: Path, reference: ObjectReference, remote: CountingRemote) -> bytes:
    return bytes(opened(folder).read(reference, remote)[0])


def read_unknown(folder: Path, reference: ObjectReference, remote: CountingRemote) -> bytes:
    """Adopt an object that has no digest and no sums."""
    unnamed = ObjectReference(reference.key, reference.key, reference.size_bytes)
    with opened(folder).adopting("label", unnamed, remote) as held:
        assert held.sum.digest == reference.digest
        return held.path.read_bytes()


@pytest.mark.parametrize("read", [read_known, read_unknown])
def test_fetch_resumes_with_missing_and_damaged_blocks_only(
    tmp_path: Path,
    objects: ObjectStore,
    remote: CountingRemote,
    data: bytes,
    read: Callable[[Path, ObjectReference, CountingRemote], bytes],
) -> None:
    reference = registered(objects, data)
    remote.answer = lambda offset, buffer: refuse(offset, buffer) if offset == 2 * BLOCK else None
    with pytest.raises(StoreUnavailable):
        read(tmp_path, reference, remote)
    (name, _) = names(tmp_path, "partial")
    with (tmp_path / "components" / "partial" / name).open("r+b") as file:
        file.write(b"torn by a power cut")
    remote.offsets.clear()
    remote.answer = lambda offset, buffer: None

    assert read(tmp_path, reference, remote) == data
    assert sorted(remote.offsets) == [0, 2 * BLOCK]


def test_partial_file_stays_writable_until_it_is_a_component(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed at the last change leaves a file that the next one has to open."""
    reference = registered(objects, data)

    def fail(path: Path, target: Path) -> Path:
        raise OSError(5, "the process ends here")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(StoreUnavailable):
        opened(tmp_path).read(reference, remote)
    monkeypatch.undo()

    (partial,) = (tmp_path / "components" / "partial").iterdir()
    assert partial.stat().st_mode & 0o200
    assert opened(tmp_path).read(reference, remote)[0] == data
    (blob,) = (tmp_path / "components" / "blobs").iterdir()
    assert not blob.stat().st_mode & 0o222


def test_component_damaged_by_power_cut_is_fetched_again(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes
) -> None:
    reference = registered(objects, data)
    opened(tmp_path).read(reference, remote)
    (blob,) = (tmp_path / "components" / "blobs").iterdir()
    blob.chmod(0o600)
    blob.write_bytes(b"")

    assert opened(tmp_path).read(reference, remote)[0] == data


def test_start_deletes_hour_old_files_of_killed_processes(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes
) -> None:
    reference = registered(objects, data)
    opened(tmp_path).read(reference, remote)
    sums = tmp_path / "components" / "sums"
    (used,) = names(tmp_path, "sums")
    for name in ("0" * 64, f"{used}.0123abcd", "1" * 64):
        (sums / name).write_text("{}")
    for name in (used, "0" * 64, f"{used}.0123abcd"):
        os.utime(sums / name, (1e9, 1e9))

    opened(tmp_path)

    assert names(tmp_path, "sums") == sorted([used, "1" * 64])


def test_eviction_spares_pinned_and_used_components(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote
) -> None:
    some = [registered(objects, bytes([number]) * 1000, f"adapters/{number}") for number in range(4)]
    store = opened(tmp_path, disk_bytes=3000)
    for reference in some[:3]:
        store.read(reference, remote)
    store.pin(some[0].digest, pinned=True)

    store.load(some[1], remote, lambda held: store.read(some[3], remote))

    assert {one.digest for one in store.components()} == {some[0].digest, some[1].digest, some[3].digest}
    assert [one.digest for one in store.components() if one.pinned] == [some[0].digest]
    with pytest.raises(StoreFull):
        store.read(registered(objects, bytes(3001), "adapters/large"), remote)
    assert store.drop(some[3].digest)
    assert names(tmp_path, "partial") == []


def test_processes_fetch_one_component_once(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes
) -> None:
    """Stores of their own, as in processes: locks belong to open files."""
    reference, found = registered(objects, data), []
    threads = [
        threading.Thread(target=lambda: found.append(opened(tmp_path).read(reference, remote)[0])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [data] * 4
    assert sorted(remote.offsets) == [0, BLOCK, 2 * BLOCK]


def test_full_disk_is_reported_and_leaves_no_partial_file(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, write = registered(objects, data), os.pwrite

    def full(descriptor: int, block: memoryview, offset: int) -> int:
        if offset >= BLOCK:
            raise OSError(28, "No space left on device")
        return write(descriptor, block, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFull):
        opened(tmp_path).read(reference, remote)
    monkeypatch.undo()

    assert names(tmp_path, "partial") == []
    assert opened(tmp_path).read(reference, remote)[0] == data


def test_full_disk_loses_components_before_it_refuses(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote
) -> None:
    """The quota exceeds the disk, as on a shared host."""
    some = [registered(objects, bytes([number]) * 2**20, f"adapters/{number}") for number in range(6)]
    with mounted_tmpfs(tmp_path, 5 * 2**20) as disk:
        (others := disk / "others").write_bytes(bytes(2 * 2**20))
        store = opened(disk, disk_bytes=2**40)
        for number, reference in enumerate(some):
            assert store.read(reference, remote)[0] == bytes([number]) * 2**20
        assert 1 <= len(store.components()) <= 2

        with pytest.raises(StoreFull):
            store.read(registered(objects, bytes(4 * 2**20), "adapters/large"), remote)
        assert names(disk, "partial") == []
        others.unlink()
        assert store.read(some[0], remote)[0] == bytes(2**20)
