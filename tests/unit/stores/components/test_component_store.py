"""Components on a disk that processes share: fetched once, verified always, consistent after a kill at any point."""

import os
import random
import signal
import subprocess
import sys
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
def test_remote_that_stays_wrong_is_named_and_leaves_no_component(
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


def test_fetch_resumes_with_missing_and_damaged_blocks_only(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote, data: bytes
) -> None:
    reference = registered(objects, data)
    remote.answer = lambda offset, buffer: refuse(offset, buffer) if offset == 2 * BLOCK else None
    with pytest.raises(StoreUnavailable):
        opened(tmp_path).read(reference, remote)
    (name, _) = names(tmp_path, "partial")
    with (tmp_path / "components" / "partial" / name).open("r+b") as file:
        file.write(b"torn by a power cut")
    remote.offsets.clear()
    remote.answer = lambda offset, buffer: None

    assert opened(tmp_path).read(reference, remote)[0] == data
    assert sorted(remote.offsets) == [0, 2 * BLOCK]


def test_eviction_spares_pinned_components_and_those_in_use(
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


def test_disk_that_others_fill_loses_components_first_and_then_has_no_room(
    tmp_path: Path, objects: ObjectStore, remote: CountingRemote
) -> None:
    """A quota beyond the disk, as of a shared host."""
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


# Fetches and evicts until it is killed, at any system call that changes the disk.
KILLED = """
import os, sys
from pathlib import Path
from pentimento.domain.generation import ObjectReference
from pentimento.policies.components import Utility
from pentimento.stores.components import ComponentStore, ObjectRemote
from pentimento.stores.objects import open_objects
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
def counted(call):
    def called(*arguments, **options):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), 9)
        return call(*arguments, **options)
    return called
remote = ObjectRemote(open_objects(f"file://{folder / 'objects'}"))
store = ComponentStore(folder / "components", 5000, 0, Utility)
for name in ("pwrite", "rename", "replace", "unlink", "ftruncate", "open"):
    setattr(os, name, counted(getattr(os, name)))
for line in sys.stdin.read().splitlines():
    key, digest, size, blocks = line.split()
    if sys.argv[3] == "known":
        store.read(ObjectReference(key, digest, int(size), blocks), remote)
    else:
        with store.adopting(key, ObjectReference(key, key, int(size)), remote):
            pass
"""


@pytest.mark.parametrize("digests", ["known", "unknown"])
def test_store_is_consistent_after_kill_at_any_point(tmp_path: Path, objects: ObjectStore, digests: str) -> None:
    some = [registered(objects, bytes([number]) * 2000, f"adapters/{number}") for number in range(4)]
    lines = "\n".join(f"{one.key} {one.digest} {one.size_bytes} {one.blocks_digest}" for one in some)
    random_points = random.Random(3)
    codes = []
    for _ in range(6):
        steps = random_points.randrange(110)
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(steps), digests], input=lines, text=True, check=False
        )
        codes.append(killed.returncode)
        store = opened(tmp_path, disk_bytes=5000)
        for number, reference in enumerate(some):
            if digests == "unknown":
                unnamed = ObjectReference(reference.key, reference.key, reference.size_bytes)
                with store.adopting(reference.key, unnamed, ObjectRemote(objects)) as held:
                    assert held.sum.digest == reference.digest
            assert store.read(reference, ObjectRemote(objects))[0] == bytes([number]) * 2000
        assert names(tmp_path, "partial") == []
        assert sum(one.size_bytes for one in store.components()) <= 5000
    assert set(codes) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in codes
