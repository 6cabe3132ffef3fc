"""Chunks as they travel, put together and taken apart by hand: the same bytes on the wire as protobuf's own, with one
copy of the data at each end where a message in a message makes four."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pentimento.api.tensor.v1 import tensor_pb2 as pb

_VARINT, _BYTES = 0, 2
_MAX_VARINT_BYTES = 10
# Beyond it is a negative number, which protobuf reads and whoever takes the chunk refuses.
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True)
class Chunk:
    """A part of a bundle, with the fields of the contract's `TensorChunk`; `data` lies in memory that others own."""

    bundle_id: int
    offset_bytes: int
    data: memoryview | bytes = field(repr=False)
    last: bool

    def message(self) -> pb.TensorChunk:
        """Return it as a message."""
        return pb.TensorChunk(
            bundle_id=self.bundle_id, offset_bytes=self.offset_bytes, data=bytes(self.data), last=self.last
        )

    def framed(self, field_number: int) -> bytes:
        """Return the bytes of a message whose only field, of that number, is this chunk."""
        numbers = pb.TensorChunk(bundle_id=self.bundle_id, offset_bytes=self.offset_bytes, last=self.last)
        head = numbers.SerializeToString() + _length_of(pb.TensorChunk.DATA_FIELD_NUMBER, len(self.data))
        return b"".join((_length_of(field_number, len(head) + len(self.data)), head, self.data))


def chunk_in(data: bytes, field_number: int) -> Chunk | None:
    """Return the chunk that is all of a message, as its field of that number, over the very bytes; None where the
    message is anything else, or written in another way than `framed` and protobuf write it."""
    try:
        number, kind, begin = _tag_at(data, 0)
        size, begin = _varint_at(data, begin)
        if (number, kind, begin + size) != (field_number, _BYTES, len(data)):
            return None
        return _chunk_at(data, begin)
    except (IndexError, ValueError):
        return None


def reading_chunks(parse: Callable[[bytes], Any], field_number: int) -> Callable[[bytes], Any]:
    """Return what reads the messages of a stream: those with a chunk in the field of that number by hand, all others by
    `parse`."""

    def read(data: bytes) -> Any:
        chunk = chunk_in(data, field_number)
        return parse(data) if chunk is None else ChunkMessage(chunk)

    return read


@dataclass(frozen=True)
class ChunkMessage:
    """Stands for a message whose `oneof` holds a chunk."""

    chunk: Chunk

    def WhichOneof(self, oneof_group: str, /) -> str:
        """Return "chunk"."""
        return "chunk"


def _chunk_at(data: bytes, begin: int) -> Chunk | None:
    """The fields from `begin` to the end, each once at most. Raises IndexError and ValueError where they are cut off or
    too large."""
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
    """A field's number, its kind, and where it goes on."""
    tag, begin = _varint_at(data, begin)
    return tag >> 3, tag & 7, begin


def _varint_at(data: bytes, begin: int) -> tuple[int, int]:
    """A number, and where it ends. Raises IndexError where it is cut off, ValueError for one that is too large."""
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
    """Tag and length before the bytes of a field."""
    return _varint(field_number << 3 | _BYTES) + _varint(size)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
