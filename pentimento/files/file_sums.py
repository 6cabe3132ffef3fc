"""Name files by sha256, and verify them block by block with BLAKE3.

A file is hashed as a whole once. Its blocks are verified at every later read, at the speed of the disk:

    sums = FileSums(directory)        # sums survive the process; without a directory they are in memory
    found = sums.of(path)             # hashes the file, unless it is known
    for start, block in read_blocks(path, found): ...
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from mmap import mmap
from pathlib import Path

from blake3 import blake3

from pentimento.domain.errors import Internal

BLOCK_BYTES = 8 * 2**20
# Longer than any process takes to write a small file.
ABANDONED_S = 3600.0
# A smaller file is hashed at each use: a configuration or a tokenizer's words.
_LEAST_KEPT_BYTES = 2**16


class CorruptComponent(Internal):
    """Report a component with other bytes than at its registration."""

    def __init__(self, component: str, source: str, detail: str) -> None:
        super().__init__("COMPONENT_CORRUPT", f"{component}: {source} has other bytes than at registration: {detail}")


@dataclass(frozen=True)
class FileSum:
    """Hold a file's sha256, its size, and the BLAKE3 hash of each block of `BLOCK_BYTES`, in hexadecimal digits."""

    sha256: str
    size_bytes: int
    blocks: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return the file's name as a component."""
        return f"sha256:{self.sha256}"

    def block_size(self, index: int) -> int:
        """Return the bytes of a block; the last one may be shorter."""
        return min(BLOCK_BYTES, self.size_bytes - index * BLOCK_BYTES)

    def matches(self, index: int, block: bytes | memoryview) -> bool:
        """Return whether these are the bytes of a block."""
        return len(block) == self.block_size(index) and block_sum(block) == self.blocks[index]

    def to_json(self) -> str:
        """Return the sum as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes, sha256: str = "") -> "FileSum":
        """Return the sum of a JSON text. Raises ValueError for any other text, and for another `sha256`."""
        try:
            stored = json.loads(text)
            found = cls(str(stored["sha256"]), int(stored["size_bytes"]), tuple(map(str, stored["blocks"])))
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError("not the sum of a file") from error
        if len(found.blocks) != block_count(found.size_bytes) or sha256 not in ("", found.sha256):
            raise ValueError("not the sum of a file of that size")
        return found


def block_count(size_bytes: int) -> int:
    """Return the number of blocks of a file."""
    return -(-size_bytes // BLOCK_BYTES)


def block_sum(block: bytes | memoryview) -> str:
    """Return the BLAKE3 hash of a block in hexadecimal digits."""
    return blake3(block).hexdigest()


class BlockHashes:
    """Hash the blocks of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._ended: list[str] = []
        self._block = blake3()

    def add(self, piece: bytes | memoryview) -> None:
        """Hash the next piece."""
        left = memoryview(piece)
        while left:
            room = BLOCK_BYTES - self.size_bytes % BLOCK_BYTES
            self._block.update(left[:room])
            self.size_bytes += len(left[:room])
            left = left[room:]
            if self.size_bytes % BLOCK_BYTES == 0:
                self._ended.append(self._block.hexdigest())
                self._block = blake3()

    def result(self) -> tuple[str, ...]:
        """Return the hashes of all blocks."""
        return (*self._ended, *([self._block.hexdigest()] if self.size_bytes % BLOCK_BYTES else []))


class SumInProgress:
    """Hash a file that is read in order."""

    def __init__(self) -> None:
        self._whole = sha256()
        self._blocks = BlockHashes()

    def add(self, piece: bytes | memoryview) -> None:
        """Hash the next piece."""
        self._whole.update(piece)
        self._blocks.add(piece)

    def result(self) -> FileSum:
        """Return the sum of all pieces."""
        return FileSum(self._whole.hexdigest(), self._blocks.size_bytes, self._blocks.result())


class FileSums:
    """Know the sums of local files by path, size and times: a changed file is hashed again. Thread-safe."""

    def __init__(self, directory: Path | None = None) -> None:
        """Create the directory, private, unless it is None."""
        self._directory = directory
        self._known: dict[str, FileSum] = {}
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_abandoned(directory.glob("*.*"))

    def known(self, path: Path) -> FileSum | None:
        """Return the sum of a file that was hashed before and has not changed since, or of a component, which its store
        keeps: blocks that differ from it are found when they are read."""
        if (component := self._component(path)) is not None:
            return component
        key = _key_of(path)
        found = self._known.get(key)
        if found is None and self._directory is not None:
            try:
                found = self._known[key] = FileSum.from_json((self._directory / key).read_bytes())
            except (OSError, ValueError):
                return None
        return found

    def of(self, path: Path) -> FileSum:
        """Return the sum of a file. Raises OSError if it cannot be read."""
        return self.known(path) or self._hash(path)

    def note(self, path: Path, found: FileSum, key: str) -> None:
        """Remember the sum of a file that was hashed elsewhere. `key` is `FileSums.key` from before it was read."""
        now = _key_of(path)
        if key != now or found.size_bytes < _LEAST_KEPT_BYTES:
            return
        self._known[now] = found
        if self._directory is not None:
            # A full disk is ignored: sums are computed again.
            with suppress(OSError):
                write_whole(self._directory / now, found.to_json().encode())

    def key(self, path: Path) -> str:
        """Return a text that changes with the file; a component never changes, and its times are those of its uses."""
        component = self._component(path)
        return _key_of(path) if component is None else component.sha256

    def _component(self, path: Path) -> FileSum | None:
        """Return the sum of a file in `blobs/` next to this directory, by its name (`stores.components`)."""
        blob = path.resolve()
        if self._directory is None or blob.parent != self._directory.resolve().with_name("blobs"):
            return None
        try:
            return FileSum.from_json((blob.parent.with_name("sums") / blob.name).read_bytes(), blob.name)
        except (OSError, ValueError):
            return None

    def _hash(self, path: Path) -> FileSum:
        key, hashing = _key_of(path), SumInProgress()
        for _, block in read_blocks(path, None):
            hashing.add(block)
        self.note(path, found := hashing.result(), key)
        return found


@cache
def file_sums_in(directory: Path | None) -> FileSums:
    """Return the sums of a component directory, one object for all of a process; in memory for None. Raises OSError if
    it cannot be created."""
    return FileSums(None if directory is None else directory / "files")


def _key_of(path: Path) -> str:
    found = path.stat()
    parts = (path.resolve(), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that other processes see whole or not at all; several may write it. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def remove_abandoned(files: Iterable[Path]) -> None:
    """Delete the files that no process wrote to for an hour: what killed processes left. Raises OSError."""
    for path in files:
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                path.unlink()


def read_blocks(
    path: Path, expected: FileSum | None, wanted: Sequence[int] | None = None, source: str = "the file"
) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and the bytes of each block, or of the blocks `wanted`, in order; a block is valid until the
    next one. Another thread reads and verifies one block ahead. Raises CorruptComponent for a block that differs from
    `expected`, and OSError."""
    # Two buffers that are used in turn, aligned to pages.
    buffers = [mmap(-1, BLOCK_BYTES) for _ in range(2)]
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    size_bytes = os.fstat(descriptor).st_size
    indices = range(block_count(size_bytes)) if wanted is None else wanted

    def read(turn: int) -> memoryview:
        index = indices[turn]
        view = memoryview(buffers[turn % 2])[: max(0, min(BLOCK_BYTES, size_bytes - index * BLOCK_BYTES))]
        filled = 0
        while filled < len(view):
            count = os.preadv(descriptor, [view[filled:]], index * BLOCK_BYTES + filled)
            if not count:
                raise CorruptComponent(path.name, source, "it was cut while it was read")
            filled += count
        if expected is not None and not expected.matches(index, view):
            raise CorruptComponent(path.name, source, f"block {index} of {len(expected.blocks)}")
        return view

    with ThreadPoolExecutor(1, thread_name_prefix="blocks") as ahead:
        try:
            # Also of an empty file, which has no block to verify.
            if expected is not None and size_bytes != expected.size_bytes:
                raise CorruptComponent(path.name, source, f"{size_bytes} bytes, expected {expected.size_bytes}")
            later = ahead.submit(read, 0) if indices else None
            for turn, index in enumerate(indices):
                assert later is not None
                view = later.result()
                if turn + 1 < len(indices):
                    later = ahead.submit(read, turn + 1)
                yield index * BLOCK_BYTES, view
        finally:
            ahead.shutdown()
            os.close(descriptor)


def read_verified(path: Path, expected: FileSum, source: str = "the file") -> bytearray:
    """Return a file's bytes, verified block by block. Raises CorruptComponent, OSError."""
    data = bytearray(expected.size_bytes)
    for start, block in read_blocks(path, expected, source=source):
        data[start : start + len(block)] = block
    return data
