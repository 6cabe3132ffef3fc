"""Split a bundle of tensors into messages of 1 MiB, and reassemble it: one large message copies and waits for each of
its bytes, at ten times the cost (docs/benchmarks.md, tensor_transport).

Chunks are serialized and parsed by hand: the same bytes on the wire as protobuf, with one copy of the data at each end;
a message in a message makes four."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import InvalidArgument

CHUNK_BYTES = 1 << 20
_VARINT, _BYTES = 0, 2
_MAX_VARINT_BYTES = 10
# A larger number is negative: protobuf parses it, and the receiver of the chunk rejects it.
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True)
class Chunk:
    """Hold a part of a bundle, with the fields of the contract's `TensorChunk`; `data` refers to memory with another
    owner."""

    bundle_id: int
    offset_bytes: int
    data: memoryview | bytes = field(repr=False)
    last: bool

    def message(self) -> pb.TensorChunk:
        """Return the chunk as a protobuf message."""
        return pb.TensorChunk(
            bundle_id=self.bundle_id, offset_bytes=self.offset_bytes, data=bytes(self.data), last=self.last
        )

    def framed(self, field_number: int) -> bytes:
        """Return the bytes of a message with this chunk as its only field, number `field_number`."""
        numbers = pb.TensorChunk(bundle_id=self.bundle_id, offset_bytes=self.offset_bytes, last=self.last)
        head = numbers.SerializeToString() + _length_of(pb.TensorChunk.DATA_FIELD_NUMBER, len(self.data))
        return b"".join((_length_of(field_number, len(head) + len(self.data)), head, self.data))


# A received chunk, as the contract's message or parsed by hand.
AnyChunk = Chunk | pb.TensorChunk


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


def chunk_in(data: bytes, field_number: int) -> Chunk | None:
    """Return the chunk of a message with only the field `field_number`, without a copy; None for any other message, or
    for an encoding that `framed` and protobuf do not write."""
    try:
        number, kind, begin = _tag_at(data, 0)
        size, begin = _varint_at(data, begin)
        if (number, kind, begin + size) != (field_number, _BYTES, len(data)):
            return None
        return _chunk_at(data, begin)
    except (IndexError, ValueError):
        return None


def reading_chunks(parse: Callable[[bytes], Any], field_number: int) -> Callable[[bytes], Any]:
    """Return a parser of a stream's messages: by hand for messages with a chunk in the field `field_number`, with
    `parse` for all others."""

    def read(data: bytes) -> Any:
        chunk = chunk_in(data, field_number)
        return parse(data) if chunk is None else ChunkMessage(chunk)

    return read


@dataclass(frozen=True)
class ChunkMessage:
    """Replace a message that has a chunk in its `oneof`."""

    chunk: Chunk

    def WhichOneof(self, oneof_group: str, /) -> str:
        """Return "chunk"."""
        return "chunk"


def _chunk_at(data: bytes, begin: int) -> Chunk | None:
    """Return the chunk with the fields from `begin` to the end, each at most once. Raises IndexError and ValueError if
    they are truncated or too large."""
    numbers = {pb.TensorChunk.BUNDLE_ID_FIELD_NUMBER: 0, pb.TensorChunk.OFFSET_BYTES_FIELD_NUMBER: 0}
    numbers[pb.TensorChunk.LAST_FIELD_NUMBER] = 0
    found: memoryview | None = None
    seen: set[int] = set()
    while begin < len(data):
        number, kind, begin = _tag_at(data, begin)
        value, begin = _varint_at(data, begin)
        if number in seen:
            return None
        seen.add(number)
        if (number, kind) == (pb.TensorChunk.DATA_FIELD_NUMBER, _BYTES):
            found, begin = memoryview(data)[begin : begin + value], begin + value
        elif number in numbers and kind == _VARINT:
            numbers[number] = value
        else:
            return None
    if begin != len(data):
        return None
    bundle_id, offset_bytes, last = numbers.values()
    return Chunk(bundle_id, offset_bytes, b"" if found is None else found, bool(last))


def _tag_at(data: bytes, begin: int) -> tuple[int, int, int]:
    """Return a field's number, its wire type, and the position after its tag."""
    tag, begin = _varint_at(data, begin)
    return tag >> 3, tag & 7, begin


def _varint_at(data: bytes, begin: int) -> tuple[int, int]:
    """Return a number and the position after it. Raises IndexError if it is truncated, ValueError if it is too
    large."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[begin + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if value > _MAX_NUMBER:
                break
            return value, begin + place + 1
    raise ValueError("no number that a chunk has")


def _length_of(field_number: int, size: int) -> bytes:
    """Return the tag and length before the bytes of a field."""
    return _varint(field_number << 3 | _BYTES) + _varint(size)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
