"""Store objects as files of a local or shared directory.

    <root>/objects/<shard>/<key with "." for "/">      whole objects; the shard is two hex digits of the key's hash
    <root>/staging/<random>                            objects being written, each locked by its writer
    <root>/quarantine/<time>.<key>                     the last corrupt objects, for inspection

An object is written to staging, flushed to disk (fsync) and renamed into place, then its directory is flushed: an
object that `put` returned survives a power cut, and any other is absent or whole. With `durable=False` nothing is
flushed: the same then holds for a crash of the process only, and a reader's digest check catches what a power cut tore.
Several processes may share one root.

Object names are built as text: `pathlib` interns each part of a path, and short-lived names fill the interpreter's
table of interned strings. The interpreter then allocates a new table (up to 2 MiB) in the heap of the next thread, and
the old one leaves a gap in another heap.
"""

import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from pentimento.domain.generation import ObjectReference
from pentimento.domain.jobs import ResultUrlServer
from pentimento.files.private_files import close_to_others, flush, make_private_directory
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing, disk_errors
from pentimento.stores.objects.store import (
    CheckReference,
    CurrentSigner,
    DigestedFile,
    Readable,
    StoreUsage,
    aside_name,
    beyond_bounds,
    broken_references,
    check_key,
    check_range,
    check_size,
    is_corrupt,
    is_key,
    presigned_path,
    refer_to,
    verify,
)

_SHARD = re.compile("[0-9a-f]{2}", re.ASCII)
_PIECE_BYTES = 2 * 2**20
_STORE = "object store"


class FilesystemObjectStore:
    """Store objects as files, as the module's docstring says. Opening it deletes the staged files of dead writers."""

    backend = "filesystem"

    def __init__(self, root: Path, signer: CurrentSigner | None = None, *, read_only: bool = False) -> None:
        """Open the store. `signer` signs the paths that `presign` returns; None if no edge serves these files. With
        `read_only` another process creates and sweeps the directories."""
        self._signer = signer
        self._objects = root / "objects"
        self._staging = root / "staging"
        self._quarantine = root / "quarantine"
        # Shards known to exist: each of the 256 is looked up once.
        self._shards: set[str] = set()
        if read_only:
            return
        with disk_errors(_STORE):
            make_private_directory(self._objects)
            make_private_directory(self._staging)
        self.sweep_uploads()

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        """Write the object, flush it and return its reference; with `durable` False it may be lost in a power cut."""
        self._write(key, (data,), durable=durable)
        return refer_to(key, data)

    def put_file(self, key: str, file: Readable, check: CheckReference | None = None) -> ObjectReference:
        """Write the rest of the file, in pieces, flush it and return its reference."""
        digested = DigestedFile(key, file, check)
        self._write(key, iter(lambda: digested.read(_PIECE_BYTES), b""), durable=True)
        return digested.reference

    def get(self, reference: ObjectReference) -> bytes:
        """Return the bytes, checked. Raises ObjectMissing, ObjectCorrupt."""
        path = self._path(check_key(reference.key))
        with disk_errors(_STORE), self._open(path, reference.key) as file:
            check_size(reference, size := os.fstat(file.fileno()).st_size)
            return verify(reference, file.read(size))

    def get_unverified(self, key: str) -> bytes:
        """Return the bytes, unchecked. Raises ObjectMissing."""
        with disk_errors(_STORE), self._open(self._path(check_key(key)), key) as file:
            return file.read()

    def read_into(self, reference: ObjectReference, offset: int, buffer: bytearray | memoryview) -> None:
        """Read a range of the object into the buffer. Raises ObjectMissing, ObjectCorrupt."""
        check_range(reference, offset, len(buffer))
        with disk_errors(_STORE), self._open(self._path(check_key(reference.key)), reference.key) as file:
            check_size(reference, os.fstat(file.fileno()).st_size)
            file.seek(offset)
            if file.readinto(buffer) != len(buffer):
                raise ObjectCorrupt(reference.key, "it was cut while it was read")

    @property
    def address_server(self) -> ResultUrlServer:
        """Return EDGE if there is a signer, else NONE."""
        return ResultUrlServer.NONE if self._signer is None else ResultUrlServer.EDGE

    def presign(self, reference: ObjectReference, media_type: str, expires_at: int) -> str:
        """Return a signed path, which an HTTP edge with the same key serves."""
        check_key(reference.key)
        return presigned_path(self._signer, reference, media_type, expires_at)

    def set_aside(self, reference: ObjectReference) -> bool:
        """Move a corrupt object to the quarantine, and return whether it was corrupt."""
        if not is_corrupt(self, reference):
            return False
        with disk_errors(_STORE):
            make_private_directory(self._quarantine)
            kept = self._quarantine / aside_name(reference.key, time.time_ns())
            # Another reader may have been first, here and below.
            with suppress(FileNotFoundError):
                os.rename(self._path(reference.key), kept)
                close_to_others(kept)
            for name in beyond_bounds(dict(self._set_aside_sizes())):
                (self._quarantine / name).unlink(missing_ok=True)
        return True

    def delete(self, key: str) -> None:
        """Delete the object, if there is one."""
        with disk_errors(_STORE):
            _unlink(self._path(check_key(key)))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield every key that starts with `prefix`, in no order."""
        # A listing of one kind among millions of objects would otherwise parse the name of every other object.
        first = prefix.replace("/", ".")
        with disk_errors(_STORE):
            for shard in filter(_SHARD.fullmatch, os.listdir(self._objects)):
                for name in _listed(f"{self._objects}/{shard}"):
                    if name.startswith(first) and is_key(key := name.replace(".", "/")):
                        yield key

    def free_bytes(self) -> int | None:
        """Return the room left on the disk."""
        with disk_errors(_STORE):
            found = os.statvfs(self._objects)
        return found.f_bavail * found.f_frsize

    def check_integrity(self, references: Iterable[ObjectReference] = ()) -> list[str]:
        """Return a sentence for each foreign, partial, missing or corrupt file."""
        with disk_errors(_STORE):
            problems = [f"foreign file {path}" for path in self._objects.glob("*/*") if not self._is_object(path)]
            problems += [f"abandoned upload {path}" for path in self._staging.iterdir() if _is_abandoned(path)]
        return problems + list(broken_references(self, references))

    def usage(self, prefix: str = "") -> StoreUsage:
        """Return the count and size of the objects with keys that start with `prefix`; neither staging nor
        quarantine."""
        sizes = []
        for key in self.keys(prefix):
            # Deleted since it was listed.
            with disk_errors(_STORE), suppress(FileNotFoundError):
                sizes.append(os.stat(self._path(key)).st_size)
        return StoreUsage(len(sizes), sum(sizes))

    def sweep_uploads(self, unfinished_for_s: float = 0.0) -> int:
        """Delete the uploads of dead writers, and return their number. Running uploads hold a lock and stay, at any
        age."""
        with disk_errors(_STORE):
            return sum(_is_abandoned(path, remove=True) for path in self._staging.iterdir())

    def _write(self, key: str, pieces: Iterable[bytes], *, durable: bool) -> None:
        """Write an object, whole or not at all."""
        target = self._path(check_key(key))
        with disk_errors(_STORE):
            shard = os.path.dirname(target)
            if shard not in self._shards:
                self._make_shard(shard)
            staged, descriptor = self._stage()
            try:
                for piece in pieces:
                    _write_all(descriptor, piece)
                if durable:
                    os.fsync(descriptor)
                self._move(staged, target)
            except BaseException:
                _unlink(staged)
                raise
            finally:
                os.close(descriptor)
            if durable:
                flush(shard)

    def _set_aside_sizes(self) -> Iterator[tuple[str, int]]:
        for path in self._quarantine.iterdir():
            with suppress(FileNotFoundError):
                yield path.name, path.stat().st_size

    def _open(self, path: str, key: str) -> BufferedReader:
        try:
            return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except FileNotFoundError:
            # A lost volume must not look like missing objects.
            if not self._objects.is_dir():
                raise
            raise ObjectMissing(key) from None

    def _path(self, key: str) -> str:
        # Keys hold no dots, so the file name maps back to its key.
        shard = hashlib.sha256(key.encode()).hexdigest()[:2]
        return f"{self._objects}/{shard}/{key.replace('/', '.')}"

    def _is_object(self, path: Path) -> bool:
        return path.is_file() and not path.is_symlink() and str(path) == self._path(path.name.replace(".", "/"))

    def _make_shard(self, shard: str) -> None:
        # Without parents: a store with a lost volume must not be rebuilt on the bare mount point.
        with suppress(FileExistsError):
            os.mkdir(shard, 0o700)
            flush(self._objects)
        self._shards.add(shard)

    def _move(self, staged: str, target: str) -> None:
        try:
            os.rename(staged, target)
        except FileNotFoundError:
            # The shard existed before; the volume may be another one now.
            self._make_shard(os.path.dirname(target))
            os.rename(staged, target)

    def _stage(self) -> tuple[str, int]:
        """Create a file in staging, locked by this process. If a sweep deletes it before it is locked, create
        another."""
        while True:
            path = f"{self._staging}/{secrets.token_hex(16)}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return path, descriptor
            except BlockingIOError:
                pass
            os.close(descriptor)


def _listed(shard: str) -> list[str]:
    # The shard was removed since, or is a foreign file.
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(shard)
    return []


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_abandoned(path: Path, remove: bool = False) -> bool:
    """Return whether no process holds the lock of a staged file; `remove` deletes it while holding a lock itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that other sweepers can hold it too: NFS grants an exclusive lock only on a file open for writing.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if remove:
            path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
