"""What only a file system can do wrong."""

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


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Writing past `size_bytes` of any file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_under(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_dir()]


def test_a_full_disk_is_typed_and_leaves_nothing(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)

    with file_size_limit(1000), pytest.raises(StoreFull):
        store.put("a", bytes(100_000))

    assert files_under(tmp_path) == []
    assert store.get(store.put("a", b"small")) == b"small"


def test_a_full_disk_keeps_the_object_that_was_to_be_replaced(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    reference = store.put("a", b"first")

    with file_size_limit(1000), pytest.raises(StoreFull):
        store.put("a", bytes(100_000))

    assert store.get(reference) == b"first"


def test_a_flush_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FilesystemObjectStore(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull):
        store.put("a", b"bytes")

    assert files_under(tmp_path) == []


@pytest.mark.parametrize("durable", [True, False])
def test_what_survives_a_power_cut_is_flushed_with_its_directory_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("a", b"before", durable=False)
    flushed: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda opened: flushed.append(Path(f"/proc/self/fd/{opened}").readlink()))

    store.put("a", b"bytes", durable=durable)

    (placed,) = (tmp_path / "objects").glob("*/a")
    # The file while it still lies where it was written, then the directory that it was moved to.
    assert [path.parent if path.parent == tmp_path / "staging" else path for path in flushed] == (
        [tmp_path / "staging", placed.parent] if durable else []
    )


def test_what_a_dead_writer_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    FilesystemObjectStore(tmp_path)
    left = tmp_path / "staging" / "left"
    left.write_bytes(b"half")

    store = FilesystemObjectStore(tmp_path)

    assert not left.exists()
    assert store.check_integrity() == []


def test_what_a_living_writer_is_writing_stays(tmp_path: Path) -> None:
    FilesystemObjectStore(tmp_path)
    staged = tmp_path / "staging" / "under-way"
    with staged.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        store = FilesystemObjectStore(tmp_path)

        assert staged.exists()
        assert store.check_integrity() == []

    assert store.check_integrity() == [f"abandoned upload {staged}"]


def test_what_a_dead_writer_left_is_swept_on_nfs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_torn_object_is_corrupt(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    reference = store.put("a", bytes(1000))
    (path,) = files_under(tmp_path / "objects")
    os.truncate(path, 500)

    with pytest.raises(ObjectCorrupt):
        store.get(reference)


def test_what_others_left_is_no_object(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("cache/a", b"bytes")
    (path,) = files_under(tmp_path / "objects")
    path.with_name("cache.a~").write_bytes(b"")

    assert list(store.keys("cache/")) == ["cache/a"]


def test_a_symbolic_link_is_never_followed(tmp_path: Path) -> None:
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


def test_a_volume_that_went_away_is_unavailable_rather_than_empty(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = FilesystemObjectStore(root)
    reference = store.put("a", b"bytes")
    root.rename(tmp_path / "elsewhere")

    with pytest.raises(StoreUnavailable):
        store.get(reference)
    with pytest.raises(StoreUnavailable):
        store.put("a", b"bytes")
    with pytest.raises(StoreUnavailable):
        list(store.keys())
    with pytest.raises(StoreUnavailable):
        store.usage()
    assert not root.exists()


def test_a_directory_that_was_taken_away_meanwhile_is_made_again(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    store.put("a", b"first")
    (shard,) = (tmp_path / "objects").iterdir()
    shutil.rmtree(shard)

    reference = store.put("a", b"second")

    assert store.get(reference) == b"second"
    assert files_under(tmp_path / "staging") == []
    assert shard.stat().st_mode & 0o077 == 0


def test_the_system_is_asked_once_for_each_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = FilesystemObjectStore(tmp_path), list[str]()
    real = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, mode: (made.append(path), real(path, mode)))

    for data in (b"first", b"second", b"third"):
        store.put("a", data)

    assert len(made) == 1


def test_names_of_objects_are_not_interned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, interned = FilesystemObjectStore(tmp_path), list[str]()
    store.put("a/warm", b"bytes")
    real = sys.intern
    monkeypatch.setattr(sys, "intern", lambda text: (interned.append(text), real(text))[1])

    reference = store.put("a/one", b"bytes")
    store.get(reference)
    store.delete(reference.key)

    assert interned == []


def test_a_file_that_a_sweep_took_before_it_was_locked_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_objects_are_spread_over_directories(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    for number in range(64):
        store.put(f"k{number}", b"", durable=False)

    assert len(list((tmp_path / "objects").iterdir())) > 32


def test_free_bytes_are_those_of_the_volume(tmp_path: Path) -> None:
    free = FilesystemObjectStore(tmp_path).free_bytes()

    assert free is not None
    assert free > 0


@pytest.mark.parametrize(
    "url",
    [
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
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        open_objects(url)


def test_objects_and_their_directories_are_this_users_alone_also_where_they_were_not(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir(mode=0o755)
    before = os.umask(0o022)

    FilesystemObjectStore(tmp_path).put("cache/one", b"latent")

    os.umask(before)
    found = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    assert found == []


def test_a_store_that_is_gone_does_not_tell_where_it_was(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path / "objects")
    shutil.rmtree(tmp_path / "objects")

    with pytest.raises(StoreUnavailable) as caught:
        store.put("a", b"bytes")

    assert str(tmp_path) not in caught.value.message


def test_what_is_set_aside_is_kept_for_its_user_alone(tmp_path: Path) -> None:
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
