"""Read the tensors of safetensors files: in large blocks, which are verified and converted while the next one is read.

A file that was not hashed before is hashed by the same read.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pentimento.files.file_sums import BLOCK_BYTES, FileSums, SumInProgress, read_blocks
from pentimento.files.safetensors_header import FLOATS, ITEM_SIZES, SafetensorsHeader, read_header

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_tensors(
    path: Path,
    sums: FileSums,
    dtype: torch.dtype | None = None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> dict[str, Tensor]:
    """Return a file's tensors by name, or those with `wanted` names, floating ones in `dtype`, else as stored. Raises
    CorruptComponent for a file that changed since it was hashed, ValueError for an unsound header, OSError."""
    known, key = sums.known(path), sums.key(path)
    header = read_header(path)
    places = list(_places(header, dtype, wanted))
    hashing = SumInProgress() if known is None and len(places) == len(header.tensors) else None
    blocks = None if hashing else sorted({0, *(index for place in places for index in place.blocks)})
    remaining = iter(places)
    place = next(remaining, None)
    for start, block in read_blocks(path, known, blocks):
        if hashing is not None:
            hashing.add(block)
        while place is not None and place.fill(start, block):
            place = next(remaining, None)
    if hashing is not None:
        sums.note(path, hashing.result(), key)
    return {place.name: place.tensor for place in places}


def _places(header: SafetensorsHeader, dtype: torch.dtype | None, wanted: Callable[[str], bool]) -> Iterator["_Place"]:
    """Yield an empty tensor for each wanted one of the file."""
    start = header.start
    for name, entry in header.tensors.items():
        stored = DTYPES[entry.dtype]
        target = dtype if dtype is not None and entry.dtype in FLOATS else stored
        size_bytes = math.prod(entry.shape) * ITEM_SIZES[entry.dtype]
        if wanted(name):
            yield _Place(name, start, start + size_bytes, stored, torch.empty(entry.shape, dtype=target))
        start += size_bytes


@dataclass
class _Place:
    """Fill a tensor from the bytes `start` to `end` of a file, block by block. `rest` holds the first bytes of a value
    that ends in the next block."""

    name: str
    start: int
    end: int
    stored: torch.dtype
    tensor: Tensor
    rest: bytes = b""

    @property
    def blocks(self) -> range:
        """Return the indices of the blocks with its bytes."""
        return range(self.start // BLOCK_BYTES, -(-self.end // BLOCK_BYTES))

    def fill(self, block_start: int, block: memoryview) -> bool:
        """Take its bytes of a block, and return whether it is complete."""
        first = max(self.start, block_start) - block_start
        last = min(self.end, block_start + len(block)) - block_start
        if last > first:
            self._take(block[first:last], block_start + first - self.start)
        return self.end <= block_start + len(block)

    def _take(self, data: memoryview, offset: int) -> None:
        item = self.stored.itemsize
        flat = self.tensor.view(-1)
        index = offset // item
        if self.rest:
            needed = item - len(self.rest)
            value = bytearray(self.rest + data[:needed])
            data, self.rest = data[needed:], b""
            flat[index : index + 1] = torch.frombuffer(value, dtype=self.stored)
            index += 1
        count = len(data) // item
        self.rest = bytes(data[count * item :])
        if count:
            flat[index : index + count].copy_(torch.frombuffer(data, dtype=self.stored, count=count))
