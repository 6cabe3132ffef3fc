"""Write a file block by block, in any order, and remember in a second file which blocks arrived."""

import os
from pathlib import Path

from pentimento.files.file_sums import BLOCK_BYTES, FileSum, SumInProgress, block_count, read_blocks

MAP_SUFFIX = ".map"
_THERE = b"\1"


class PartialFile:
    """Hold a file of known size while its blocks arrive; its map has a byte for each block. The caller holds its lock.

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
        return not any(os.pread(self._map, block_count(self.size_bytes), 0))

    def missing(self, expected: FileSum | None) -> list[int]:
        """Return the blocks that did not arrive, or not as `expected`."""
        there = os.pread(self._map, block_count(self.size_bytes), 0)
        marked = [index for index, mark in enumerate(there) if mark]
        if expected is not None:
            marked = [index for index in marked if expected.matches(index, self._read(index, expected))]
        return sorted(set(range(block_count(self.size_bytes))) - set(marked))

    def write(self, index: int, block: memoryview) -> None:
        """Write a block, then mark it. Raises OSError if there is no room."""
        start, written = index * BLOCK_BYTES, 0
        while written < len(block):
            written += os.pwrite(self.descriptor, block[written:], start + written)
        os.pwrite(self._map, _THERE, index)

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

    def _read(self, index: int, expected: FileSum) -> bytes:
        return os.pread(self.descriptor, expected.block_size(index), index * BLOCK_BYTES)


def map_path(path: Path) -> Path:
    """Return the path of a partial file's map."""
    return path.with_name(path.name + MAP_SUFFIX)
