"""Test faults that only a file system has."""

import errno
import fcntl
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import ObjectCorrupt, StoreFull, StoreUnavailable
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.filesystem import FilesystemObjectStore
from tests.support.refusals import raises


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Limit the size of any file to `size_bytes`, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_under(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_dir()]


def test_put_on_full_disk_leaves_earlier_objects_only(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    with file_size_limit(1000), pytest.raises(StoreFull):
        store.put("a", bytes(100_000))
    assert files_under(tmp_path) == []
    reference = store.put("a", b"small")

    with file_size_limit(1000), pytest.raises(StoreFull):
        store.put("a", bytes(100_000))

    assert store.get(reference) == b"small"


def test_put_with_failing_flush_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FilesystemObjectStore(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull):
        store.put("a", b"bytes")

    assert files_under(tmp_path) == []


@pytest.mark.parametrize("durable", [True, False])
def test_put_flushes_durable_objects_and_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("a", b"before", durable=False)
    flushed: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda opened: flushed.append(Path(f"/proc/self/fd/{opened}").readlink()))

    store.put("a", b"bytes", durable=durable)

    (placed,) = (tmp_path / "objects").glob("*/a")
    # The staged file is flushed first, then the directory that it moved to.
    assert [path.parent if path.parent == tmp_path / "staging" else path for path in flushed] == (
        [tmp_path / "staging", placed.parent] if durable else []
    )


def test_start_removes_files_of_dead_writer(tmp_path: Path) -> None:
    FilesystemObjectStore(tmp_path)
    left = tmp_path / "staging" / "left"
    left.write_bytes(b"half")

    store = FilesystemObjectStore(tmp_path)

    assert not left.exists()
    assert store.check_integrity() == []


def test_start_keeps_files_of_living_writer(tmp_path: Path) -> None:
    FilesystemObjectStore(tmp_path)
    staged = tmp_path / "staging" / "under-way"
    with staged.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        store = FilesystemObjectStore(tmp_path)

        assert staged.exists()
        assert store.check_integrity() == []

    assert store.check_integrity() == [f"abandoned upload {staged}"]


def test_start_sweeps_on_nfs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exclusive locks are of files that are open for writing (flock(2))."""
    FilesystemObjectStore(tmp_path)
    (tmp_path / "staging" / "left").write_bytes(b"half")
    real = fcntl.flock

    def flock_of_nfs(descriptor: int, operation: int) -> None:
        is_for_writing = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if operation & fcntl.LOCK_EX and not is_for_writing:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)

    store = FilesystemObjectStore(tmp_path)

    assert files_under(tmp_path / "staging") == []
    assert store.get(store.put("a", b"bytes")) == b"bytes"


def test_get_of_torn_object_is_corrupt(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    reference = store.put("a", bytes(1000))
    (path,) = files_under(tmp_path / "objects")
    os.truncate(path, 500)

    with pytest.raises(ObjectCorrupt):
        store.get(reference)


def test_keys_leave_out_files_of_others(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("cache/a", b"bytes")
    (path,) = files_under(tmp_path / "objects")
    path.with_name("cache.a~").write_bytes(b"")

    assert list(store.keys("cache/")) == ["cache/a"]


def test_get_follows_no_symbolic_link(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path / "store")
    secret = tmp_path / "secret"
    secret.write_bytes(b"bytes")
    reference = store.put("a", b"bytes")
    (path,) = files_under(tmp_path / "store" / "objects")
    path.unlink()
    path.symlink_to(secret)

    with pytest.raises(StoreUnavailable):
        store.get(reference)
    assert store.check_integrity() == [f"foreign file {path}"]


def test_store_of_missing_volume_is_unavailable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = FilesystemObjectStore(root)
    reference = store.put("a", b"bytes")
    root.rename(tmp_path / "elsewhere")

    calls = (lambda: store.get(reference), lambda: store.put("a", b"bytes"), lambda: list(store.keys()), store.usage)
    for call in calls:
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert str(tmp_path) not in caught.value.message
    assert not root.exists()


def test_put_makes_missing_directory_again(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("a", b"first")
    (shard,) = (tmp_path / "objects").iterdir()
    shutil.rmtree(shard)

    reference = store.put("a", b"second")

    assert store.get(reference) == b"second"
    assert files_under(tmp_path / "staging") == []
    assert shard.stat().st_mode & 0o077 == 0


def test_put_makes_each_directory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = FilesystemObjectStore(tmp_path), list[str]()
    real = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, mode: (made.append(path), real(path, mode)))

    for data in (b"first", b"second", b"third"):
        store.put("a", data)

    assert len(made) == 1


def test_store_interns_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, interned = FilesystemObjectStore(tmp_path), list[str]()
    store.put("a/warm", b"bytes")
    real = sys.intern
    monkeypatch.setattr(sys, "intern", lambda text: (interned.append(text), real(text))[1])

    reference = store.put("a/one", b"bytes")
    store.get(reference)
    store.delete(reference.key)

    assert interned == []


def test_put_stages_again_when_swept_before_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, swept = FilesystemObjectStore(tmp_path), list[Path]()
    real = fcntl.flock

    def sweep_first(descriptor: int, operation: int) -> None:
        if not swept:
            swept.extend((tmp_path / "staging").iterdir())
            swept[0].unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)

    assert store.get(store.put("a", b"bytes")) == b"bytes"
    assert len(swept) == 1


def test_put_spreads_objects_over_directories(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    for number in range(64):
        store.put(f"k{number}", b"", durable=False)

    assert len(list((tmp_path / "objects").iterdir())) > 32


def test_free_bytes_of_volume(tmp_path: Path) -> None:
    free = FilesystemObjectStore(tmp_path).free_bytes()

    assert free is not None
    assert free > 0


OTHER_URLS = (
    "",
    "/tmp/x",
    "http://x/y",
    "file:",
    "file://host/x",
    "file:///x?fsync=off",
    "file:///x#1/y",
    "file:///x%00y",
    "s3:///x",
    "s3://[/x",
    "s3://bucket/team#1",
    "s3://bucket/x?create_bucket=yes",
    "s3://bucket/x?endpoint=minio:9000",
    "s3://bucket/x?region=no%20region",
)


def test_open_objects_refuses_other_urls() -> None:
    assert [url for url in OTHER_URLS if not raises(InvalidArgument, open_objects, url)] == []


def test_put_makes_files_and_directories_private(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir(mode=0o755)
    before = os.umask(0o022)

    FilesystemObjectStore(tmp_path).put("cache/one", b"latent")

    os.umask(before)
    found = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    assert found == []


def test_set_aside_keeps_private_file(tmp_path: Path) -> None:
    objects = FilesystemObjectStore(tmp_path)
    reference = objects.put("results/a", b"bytes")
    (stored,) = (tmp_path / "objects").rglob("results.a")
    stored.write_bytes(b"torn!")
    stored.chmod(0o644)

    objects.set_aside(reference)

    (kept,) = (tmp_path / "quarantine").iterdir()
    assert kept.read_bytes() == b"torn!"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
