"""Split a bundle of tensors into messages of 1 MiB: one large message copies and waits for each of its bytes, at ten
times the cost (docs/benchmarks.md, tensor_transport)."""

from collections.abc import Iterator
from typing import Protocol

from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.chunk_frames import Chunk

CHUNK_BYTES = 1 << 20


class AnyChunk(Protocol):
    """Describe a received chunk, as the contract's message or parsed by hand."""

    @property
    def bundle_id(self) -> int: ...

    @property
    def offset_bytes(self) -> int: ...

    @property
    def data(self) -> bytes | memoryview: ...

    @property
    def last(self) -> bool: ...


def chunks_of(bundle_id: int, data: memoryview) -> Iterator[Chunk]:
    """Yield the bundle's chunks in order, the last one marked; one empty chunk for an empty bundle. They refer to
    `data` without a copy."""
    for offset in range(0, max(len(data), 1), CHUNK_BYTES):
        part = data[offset : offset + CHUNK_BYTES]
        last = offset + CHUNK_BYTES >= len(data)
        yield Chunk(bundle_id, offset, part, last)


class ChunkAssembly:
    """Assemble one bundle of a known size."""

    def __init__(self, bundle_id: int, size_bytes: int) -> None:
        self.bundle_id = bundle_id
        self._memory = memoryview(bytearray(size_bytes))
        self._end = 0

    def add(self, chunk: AnyChunk) -> memoryview | None:
        """Return the bundle's memory with its last chunk, None before. Raises InvalidArgument for a chunk of another
        bundle, out of order, beyond the end, or an end before it is full."""
        data = chunk.data
        size = len(data)
        if chunk.bundle_id != self.bundle_id:
            raise InvalidArgument.of("chunk.bundle_id", f"must be {self.bundle_id}, got {chunk.bundle_id}")
        if chunk.offset_bytes != self._end or self._end + size > len(self._memory):
            limit = f"must go on at {self._end} of {len(self._memory)} bytes"
            raise InvalidArgument.of("chunk.offset_bytes", f"{limit}, got {size} bytes at {chunk.offset_bytes}")
        self._memory[self._end : self._end + size] = data
        self._end += size
        full = self._end == len(self._memory)
        if chunk.last != full or (not size and not full):
            raise InvalidArgument.of("chunk.last", f"must be set with byte {len(self._memory)}, got {self._end}")
        return self._memory if full else None
