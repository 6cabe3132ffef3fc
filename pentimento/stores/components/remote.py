"""Fetch components from peers and a remote store, many blocks at a time. A file is written block by block, in any
order; a second file has the blocks that arrived."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.files.file_sums import (
    BLOCK_BYTES,
    CorruptComponent,
    FileSum,
    SumInProgress,
    block_count,
    block_sum,
    read_blocks,
)
from pentimento.stores.errors import ObjectCorrupt
from pentimento.stores.objects.store import ObjectStore

logger = logging.getLogger(__name__)


MAP_SUFFIX = ".map"


class PartialFile:
    """Hold a file of known size while its blocks arrive; its map has the BLAKE3 hash of each block that did. The caller
    holds its lock.

    A killed process leaves at most a block that is not in the map, which is fetched again. A power cut may leave a
    block in the map that was not written: `missing` verifies all.
    """

    def __init__(self, path: Path, descriptor: int, size_bytes: int) -> None:
        """Take over the open file. Raises OSError if there is no room."""
        self.path = path
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._map = os.open(map_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(descriptor).st_size != size_bytes:
            os.ftruncate(self._map, 0)
            os.ftruncate(descriptor, size_bytes)

    @property
    def is_empty(self) -> bool:
        """Return whether no block arrived."""
        return not any(self._hashes())

    def missing(self, expected: FileSum | None) -> list[int]:
        """Return the blocks that did not arrive, or that are not in the file as they arrived and as `expected`."""
        marks = self._hashes()
        return [index for index in range(len(marks)) if not marks[index] or not self._is_there(index, marks, expected)]

    def write(self, index: int, block: memoryview) -> None:
        """Write a block, then mark it. Raises OSError if there is no room."""
        start, written = index * BLOCK_BYTES, 0
        while written < len(block):
            written += os.pwrite(self.descriptor, block[written:], start + written)
        os.pwrite(self._map, bytes.fromhex(block_sum(block)), index * _HASH_BYTES)

    def forget(self) -> None:
        """Forget every block."""
        os.ftruncate(self._map, 0)

    def sum(self) -> FileSum:
        """Return the sum of the whole file."""
        hashing = SumInProgress()
        for _, block in read_blocks(self.path, None):
            hashing.add(block)
        return hashing.result()

    def close(self) -> None:
        """Close the map; the file stays open."""
        os.close(self._map)

    def _hashes(self) -> list[str]:
        """Return the hash of each block in hexadecimal digits; empty for one that did not arrive."""
        there = os.pread(self._map, block_count(self.size_bytes) * _HASH_BYTES, 0)
        starts = range(0, block_count(self.size_bytes) * _HASH_BYTES, _HASH_BYTES)
        return [found.hex() if any(found := there[start : start + _HASH_BYTES]) else "" for start in starts]

    def _is_there(self, index: int, marks: list[str], expected: FileSum | None) -> bool:
        if expected is not None and marks[index] != expected.blocks[index]:
            return False
        return block_sum(os.pread(self.descriptor, BLOCK_BYTES, index * BLOCK_BYTES)) == marks[index]


def map_path(path: Path) -> Path:
    """Return the path of a partial file's map."""
    return path.with_name(path.name + MAP_SUFFIX)


# One connection is limited by its round trips.
CONNECTIONS = 8
# A block waits for no more slow peers than this.
PEERS_A_BLOCK = 2
_HASH_BYTES = 32


class BlockSource(Protocol):
    """Describe a source of a component's bytes: a remote store, or a peer that holds it."""

    @property
    def name(self) -> str:
        """Return its name in errors."""

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the component's bytes from `offset` on, on any thread. Raises PentimentoError."""


class Remote(BlockSource, Protocol):
    """Describe a remote store, which has all components."""

    def sums(self, reference: ObjectReference) -> FileSum | None:
        """Return the sums that were registered with the component; None if there are none. Raises the store's
        errors."""


class PeerSource(BlockSource, Protocol):
    """Describe a peer: another process that holds a component."""

    def note_failure(self, error: PentimentoError) -> None:
        """Learn that it did not answer, or sent wrong bytes; on any thread."""


# Returns the peers that hold the component with a digest.
Peers = Callable[[str], Sequence[PeerSource]]


def no_peers(digest: str) -> Sequence[PeerSource]:
    """Return no peers."""
    return ()


class ObjectRemote:
    """Fetch components from an object store."""

    name = "the object store"

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def sums(self, reference: ObjectReference) -> FileSum | None:
        """Return the registered sums, which the reference has the digest of."""
        place = sums_place(reference)
        if place is None:
            return None
        hashes = self._objects.get(place)
        blocks = tuple(hashes[start : start + _HASH_BYTES].hex() for start in range(0, len(hashes), _HASH_BYTES))
        return FileSum(reference.digest.removeprefix("sha256:"), reference.size_bytes, blocks)

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        """Read a range of the object."""
        self._objects.read_into(reference, offset, buffer)


def sums_place(reference: ObjectReference) -> ObjectReference | None:
    """Return the object with the hashes of a component's blocks, one after the other; None without a digest of it."""
    if not reference.blocks_digest:
        return None
    size_bytes = block_count(reference.size_bytes) * _HASH_BYTES
    return ObjectReference(sums_key(reference.key), reference.blocks_digest, size_bytes)


def put_sums(objects: ObjectStore, key: str, blocks: Iterable[str]) -> str:
    """Store the hashes of a component's blocks next to it, and return their digest."""
    return objects.put(sums_key(key), b"".join(map(bytes.fromhex, blocks))).digest


def sums_key(key: str) -> str:
    """Return the key of the hashes of a component's blocks."""
    return f"{key}-blocks"


class Download:
    """Fetch the missing blocks of a component: from its peers in turn, and from the remote store what they do not
    have. A peer that fails once is not asked again, the store twice for each block. A block that differs from its sum
    is handed to `set_aside`."""

    def __init__(
        self,
        reference: ObjectReference,
        remote: BlockSource,
        set_aside: Callable[[int, memoryview], None],
        peers: Sequence[PeerSource] = (),
    ) -> None:
        """Prepare a download. `peers` need sums: only with those it is known which source was wrong."""
        self._reference = reference
        self._remote = remote
        self._set_aside = set_aside
        self._peers = {peer.name: peer for peer in peers}
        self._buffers = threading.local()

    def run(self, partial: PartialFile, expected: FileSum | None) -> None:
        """Fetch, in parallel. Raises CorruptComponent that names component and source, the store's errors, and OSError
        if the disk has no room; blocks that arrived stay."""
        missing = partial.missing(expected)
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="download") as pool:
            running = [pool.submit(self._fetch, index, partial, expected) for index in missing]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            failed = [error for one in done if (error := one.exception()) is not None]
            if failed:
                pool.shutdown(cancel_futures=True)
                raise failed[0]

    def _fetch(self, index: int, partial: PartialFile, expected: FileSum | None) -> None:
        size = min(BLOCK_BYTES, self._reference.size_bytes - index * BLOCK_BYTES)
        failure: PentimentoError | None = None
        for source in self._sources(index):
            try:
                block = self._read(source, index, size)
                if expected is None or expected.matches(index, block):
                    partial.write(index, block)
                    return
                self._set_aside(index, block)
                detail = f"block {index} of {block_count(self._reference.size_bytes)}"
                raise CorruptComponent(self._reference.digest, source.name, detail)
            except PentimentoError as error:
                failure = error
                if (peer := self._peers.pop(source.name, None)) is not None:
                    peer.note_failure(error)
                    logger.warning("a peer is skipped", extra={"peer": source.name, "error": error.message})
        assert failure is not None
        raise failure

    def _sources(self, index: int) -> Iterator[BlockSource]:
        """Yield peers that have not failed, another one first for each block, then the store."""
        for _ in range(PEERS_A_BLOCK):
            if there := tuple(self._peers.values()):
                yield there[index % len(there)]
        yield from (self._remote, self._remote)

    def _read(self, source: BlockSource, index: int, size: int) -> memoryview:
        if not hasattr(self._buffers, "block"):
            self._buffers.block = bytearray(BLOCK_BYTES)
        block = memoryview(self._buffers.block)[:size]
        try:
            source.read_into(self._reference, index * BLOCK_BYTES, block)
        except ObjectCorrupt as error:
            raise CorruptComponent(self._reference.digest, source.name, error.message) from error
        return block
