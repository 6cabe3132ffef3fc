"""Keep components on a local disk that several processes share.

    blobs/<sha256>        whole components; the name is the sha256 of the bytes
    sums/<sha256>         the hashes of their blocks, as JSON
    partial/<sha256>      components that are being fetched, each with its `.map` of blocks that arrived
    pinned/<sha256>       an empty file for each component that is never evicted
    quarantine/…          the last blocks and components with wrong bytes

A process that fetches a component holds the exclusive lock of its partial file, so that each is fetched once; a process
that uses a component holds a shared lock of it, so that it is not evicted. The locks of a killed process are free.
Nothing is flushed to disk: a reader verifies every block, and finds one that a power cut tore.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pentimento.domain.components import ComponentRule, Loadable, victims
from pentimento.files.file_sums import FileSum, remove_abandoned, write_whole
from pentimento.files.private_files import make_private_directory
from pentimento.stores.components.remote import MAP_SUFFIX, PartialFile, map_path
from pentimento.stores.errors import StoreFull, disk_errors
from pentimento.stores.objects.store import beyond_bounds

# The name of the store in errors.
STORE = "component store"
# Seconds of a component's load are estimated from its size until one was measured.
FETCH_BYTES_PER_S = 100e6


@dataclass(frozen=True)
class HeldBlob:
    """Hold a whole component that is not evicted as long as `descriptor` is open: its file and its sum."""

    path: Path
    sum: FileSum
    descriptor: int


class DiskTier:
    """Hold components within a quota. Thread-safe. All methods raise StoreUnavailable if the disk fails."""

    name = "the local disk"

    def __init__(self, directory: Path, max_bytes: int, rule: ComponentRule) -> None:
        """Open the directory, created private if missing. `rule` ranks what leaves."""
        self._max_bytes = max_bytes
        self._rule = rule
        self._root = directory
        # Times of the last uses that the rule knows, by name.
        self._used_at_ns: dict[str, int] = {}
        self._lock = threading.Lock()
        with disk_errors(STORE):
            for name in ("blobs", "sums", "partial", "pinned", "quarantine"):
                make_private_directory(directory / name)
            remove_abandoned(path for path in (directory / "sums").iterdir() if not self._blob(path.name).exists())

    def hold(self, name: str) -> HeldBlob | None:
        """Return a component and count a use; None for a missing one. The caller closes its descriptor."""
        with disk_errors(STORE):
            descriptor = _locked(self._blob(name), os.O_RDONLY, fcntl.LOCK_SH)
            if descriptor is None:
                return None
            try:
                found = FileSum.from_json((self._root / "sums" / name).read_bytes(), name)
            except (OSError, ValueError):
                self.set_aside(name, descriptor)
                os.close(descriptor)
                return None
            with suppress(OSError):
                os.utime(descriptor)
            self._count_use(name, os.fstat(descriptor))
            return HeldBlob(self._blob(name), found, descriptor)

    def read_range(self, name: str, offset: int, size: int) -> bytes | None:
        """Return a part of a component, shorter at its end and not verified; None for a missing one. Counts no use."""
        with disk_errors(STORE):
            try:
                descriptor = os.open(self._blob(name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                return os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)

    @contextmanager
    def filling(self, name: str, size_bytes: int) -> Iterator[PartialFile | None]:
        """Hold the partial file of a component, alone on this host; None if it was completed meanwhile. Raises
        StoreFull if the quota or the disk has no room."""
        path = self._root / "partial" / name
        with disk_errors(STORE):
            descriptor = _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        assert descriptor is not None
        try:
            with disk_errors(STORE):
                if self._blob(name).exists():
                    self._drop_partial(path)
                    yield None
                    return
                partial = self._with_room(path, descriptor, size_bytes)
            try:
                with disk_errors(STORE):
                    yield partial
            finally:
                if partial.is_empty:
                    self._drop_partial(path)
                partial.close()
        except StoreFull:
            self._drop_partial(path)
            raise
        finally:
            os.close(descriptor)

    def complete(self, partial: PartialFile, found: FileSum) -> None:
        """Make a partial file a component, once all its blocks arrived and were verified. No process writes to it
        later: others map it."""
        write_whole(self._root / "sums" / found.sha256, found.to_json().encode())
        map_path(partial.path).unlink(missing_ok=True)
        partial.path.rename(self._blob(found.sha256))
        # At the end: a killed process must leave a file that the next one can write to.
        os.fchmod(partial.descriptor, 0o400)

    def check_room(self, size_bytes: int) -> None:
        """Raise StoreFull for what the tier cannot hold even without all else."""
        if size_bytes > self._max_bytes:
            raise StoreFull(STORE, f"{size_bytes} bytes exceed the {self._max_bytes} of {self.name}")

    def set_aside(self, name: str, descriptor: int) -> None:
        """Move the component that is open, and has wrong bytes, to the quarantine."""
        path = self._blob(name)
        with suppress(FileNotFoundError):
            # Another reader may have set it aside, and fetched it again.
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                path.rename(self._aside(name))
        self._bound_quarantine()

    def keep_bad_block(self, name: str, index: int, block: memoryview) -> None:
        """Keep a fetched block with wrong bytes for inspection."""
        with suppress(OSError):
            write_whole(self._aside(f"{name}.{index}"), bytes(block))
        self._bound_quarantine()

    def components(self) -> tuple[Loadable, ...]:
        """Return the whole components, and count the uses of other processes."""
        return tuple(self._count_use(name, status) for name, status in self.found())

    def found(self) -> list[tuple[str, os.stat_result]]:
        """Return the files of the whole components by name, the last used one at the end."""
        found = []
        with disk_errors(STORE):
            for file in os.scandir(self._root / "blobs"):
                with suppress(FileNotFoundError):
                    found.append((file.name, file.stat()))
        return sorted(found, key=lambda pair: pair[1].st_mtime_ns)

    def pin(self, name: str, *, pinned: bool) -> None:
        """Keep a component until it is unpinned; it may be fetched later."""
        mark = self._root / "pinned" / name
        with disk_errors(STORE):
            if pinned:
                mark.touch(mode=0o600)
            else:
                mark.unlink(missing_ok=True)

    @property
    def pinned(self) -> frozenset[str]:
        """Return the pinned components."""
        return frozenset(mark.name for mark in (self._root / "pinned").iterdir())

    def drop(self, name: str) -> bool:
        """Delete a component unless it is in use, and return whether it is gone."""
        path = self._blob(name)
        with disk_errors(STORE):
            descriptor = _locked(path, os.O_RDONLY, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is None:
                return not path.exists()
            # In this order: a process that fetches it again writes its sum after the file is gone.
            (self._root / "sums" / name).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            os.close(descriptor)
        self._used_at_ns.pop(name, None)
        return True

    def _count_use(self, name: str, status: os.stat_result) -> Loadable:
        """Count a use by this or another process: it changes the file's time."""
        one = Loadable(name, status.st_size, status.st_size / FETCH_BYTES_PER_S)
        with self._lock:
            if self._used_at_ns.get(name) != status.st_mtime_ns:
                self._used_at_ns[name] = status.st_mtime_ns
                self._rule.note_use(one, status.st_mtime_ns / 1e9)
        return one

    def _with_room(self, path: Path, descriptor: int, size_bytes: int) -> PartialFile:
        """Evict until the partial file fits. One process at a time, so that two do not take the same room: its size
        counts from here on, before the first block."""
        self.check_room(size_bytes)
        lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._evict(path.name, size_bytes, size_bytes - os.fstat(descriptor).st_blocks * 512)
            return PartialFile(path, descriptor, size_bytes)
        finally:
            os.close(lock)

    def _evict(self, name: str, size_bytes: int, missing_bytes: int) -> None:
        """Evict until the quota has room for the size, and the disk for the missing part."""
        self._drop_abandoned(name, size_bytes)
        kept = set(self.pinned)
        while (needed_bytes := max(self._over_quota(name, size_bytes), self._short(missing_bytes))) > 0:
            there, now_s = self.components(), time.time()
            leaving = victims(self._rule, there, needed_bytes, now_s, kept)
            if leaving is None:
                raise StoreFull(STORE, "the components in use leave no room")
            for one in there:
                if one.name in leaving:
                    self._rule.note_eviction(one, now_s)
                    # One in use stays, and others leave in the next round.
                    if not self.drop(one.name):
                        kept.add(one.name)

    def _drop_abandoned(self, name: str, size_bytes: int) -> None:
        """Delete partial files that no process fetches, the oldest first, until there is room."""
        partial = sorted(
            (path for path in (self._root / "partial").iterdir() if path.suffix != MAP_SUFFIX and path.name != name),
            key=_changed_at_ns,
        )
        for path in partial:
            if self._over_quota(name, size_bytes) <= 0:
                return
            descriptor = _locked(path, os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None:
                self._drop_partial(path)
                os.close(descriptor)

    def _over_quota(self, name: str, size_bytes: int) -> int:
        return self._used_bytes(name) + size_bytes - self._max_bytes

    def _short(self, size_bytes: int) -> int:
        """Return the bytes that the disk lacks for that size; others than components may fill it."""
        disk = os.statvfs(self._root)
        return size_bytes - disk.f_bavail * disk.f_frsize

    def _used_bytes(self, without: str) -> int:
        """Return the bytes of all components, and of all partial files but one as if they were whole."""
        partial = (file for file in os.scandir(self._root / "partial") if not file.name.endswith(MAP_SUFFIX))
        files = [*os.scandir(self._root / "blobs"), *(file for file in partial if file.name != without)]
        return sum(_size_of(file) for file in files)

    def _drop_partial(self, path: Path) -> None:
        # In this order: no later start would find a map alone.
        map_path(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _blob(self, name: str) -> Path:
        return self._root / "blobs" / name

    def _aside(self, name: str) -> Path:
        return self._root / "quarantine" / f"{time.time_ns():020d}.{name}"

    def _bound_quarantine(self) -> None:
        sizes = {file.name: _size_of(file) for file in os.scandir(self._root / "quarantine")}
        for name in beyond_bounds(sizes):
            (self._root / "quarantine" / name).unlink(missing_ok=True)


def _size_of(file: "os.DirEntry[str]") -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _changed_at_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _locked(path: Path, flags: int, lock: int) -> int | None:
    """Return a file's descriptor with a lock; None if there is no such file, or if it is locked and `lock` does not
    wait."""
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, lock)
            # Another process may have renamed or deleted it first.
            with suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
