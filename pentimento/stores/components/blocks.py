"""Write a file block by block, in any order, and remember in a second file which blocks arrived."""

import os
from pathlib import Path

from pentimento.files.file_sums import BLOCK_BYTES, FileSum, SumInProgress, block_count, block_sum, read_blocks

MAP_SUFFIX = ".map"
_HASH_BYTES = 32


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
