"""Read the tensors of safetensors files in place: the file is mapped, and its blocks are verified on threads. A tensor
that keeps its type is used where it lies in the file (see `files.mapped_file` for who may write to it); others are
converted as soon as their blocks were verified."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

from pentimento.diffusion.host_memory import host_buffers, packed_bytes
from pentimento.diffusion.host_memory import places as memory_places
from pentimento.files.file_sums import BLOCK_BYTES, CorruptComponent, FileSums
from pentimento.files.mapped_file import MappedFile
from pentimento.files.safetensors_header import (
    FLOATS,
    ITEM_SIZES,
    SafetensorsHeader,
    TensorEntry,
    header_length,
    judge_safetensors,
)

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
    """Return a file's tensors by name, or those with `wanted` names, floating ones in `dtype`, else as stored. A file
    without a sum is hashed first. Raises CorruptComponent for a file that changed since it was hashed, ValueError for
    an unsound header, OSError."""
    known, key = sums.of(path), sums.key(path)
    file = MappedFile(path, known)
    places = [place for place in _places(_verified_header(file)) if wanted(place.name)]
    file.verify(sorted({index for place in places for index in place.blocks}))
    converted = {place.name: like for place in places if (like := place.converted(dtype)) is not None}
    memory = host_buffers(is_read_by_device=False).take(packed_bytes(converted.values()))
    target_of = dict(zip(converted, memory_places(memory, converted.values()), strict=True))
    found = {}
    for place in places:
        file.wait(place.blocks)
        stored = place.tensor(file.data)
        found[place.name] = target_of[place.name].copy_(stored) if place.name in target_of else stored
    if key != sums.key(path):
        raise CorruptComponent(path.name, "the file", "it changed while it was read")
    return found


def _verified_header(file: MappedFile) -> SafetensorsHeader:
    file.verify(range(1))
    file.wait(range(1))
    end = 8 + header_length(file.data[:8], len(file.data))
    blocks = range(-(-end // BLOCK_BYTES))
    file.verify(blocks)
    file.wait(blocks)
    return judge_safetensors(file.data[:end], len(file.data))


def _places(header: SafetensorsHeader) -> Iterator["_Place"]:
    """Yield the place of each tensor of the file."""
    start = header.start
    for name, entry in header.tensors.items():
        end = start + math.prod(entry.shape) * ITEM_SIZES[entry.dtype]
        yield _Place(name, start, end, entry)
        start = end


@dataclass(frozen=True)
class _Place:
    """State the bytes `start` to `end` of a file that a tensor has."""

    name: str
    start: int
    end: int
    entry: TensorEntry

    @property
    def blocks(self) -> range:
        """Return the indices of the blocks with its bytes."""
        return range(self.start // BLOCK_BYTES, -(-self.end // BLOCK_BYTES))

    def converted(self, dtype: torch.dtype | None) -> Tensor | None:
        """Return the shape of the tensor in `dtype`, as one without memory; None if it keeps its type."""
        changes = dtype not in (None, DTYPES[self.entry.dtype]) and self.entry.dtype in FLOATS
        return torch.empty(self.entry.shape, dtype=dtype, device="meta") if changes else None

    def tensor(self, data: mmap) -> Tensor:
        """Return the tensor over the file's bytes."""
        stored = DTYPES[self.entry.dtype]
        count = (self.end - self.start) // stored.itemsize
        if not count:
            return torch.empty(self.entry.shape, dtype=stored)
        if self.start % stored.itemsize == 0:
            found = torch.frombuffer(data, dtype=stored, count=count, offset=self.start)
        else:  # other writers than safetensors' own align nothing
            found = torch.frombuffer(bytearray(data[self.start : self.end]), dtype=stored)
        return found.view(self.entry.shape)
