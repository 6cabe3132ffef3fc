"""Check the chunks of a PNG (RFC 2083), and extract the few that hold pixels. Write chunks of PNG files, and read those
before the pixels without decoding."""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pentimento.images.container import MAX_PARTS, BadImage, orientation_of, require

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER_END = 33  # signature, and IHDR: length, type, 13 bytes, checksum

# Keyword, NUL, not compressed, compression method, empty language tag, empty translated keyword (PNG 1.2, 4.2.3.3).
PROVENANCE_PREFIX = b"pentimento\0\0\0\0\0"


def png_chunk(kind: bytes, content: bytes = b"") -> bytes:
    """Return a chunk with its length and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))


def png_file(*chunks: bytes) -> bytes:
    """Return a file with these chunks, from its signature to IEND."""
    return SIGNATURE + b"".join(chunks) + png_chunk(b"IEND")


def with_chunk(png: bytes, chunk: bytes) -> bytes:
    """Return the PNG with a chunk after its header."""
    return png[:HEADER_END] + chunk + png[HEADER_END:]


def provenance_chunk(document: Mapping[str, Any]) -> bytes:
    """Return an iTXt chunk `pentimento` with UTF-8 JSON."""
    return png_chunk(b"iTXt", PROVENANCE_PREFIX + json.dumps(document, ensure_ascii=False).encode())


def is_signed(png: bytes) -> bool:
    """Return whether the file has a C2PA manifest: every later change breaks its signature."""
    return any(kind == b"caBX" for kind, _ in leading_chunks(png))


def leading_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, content) up to the first pixels, or the first incomplete chunk; nothing if the bytes are no PNG."""
    position = len(SIGNATURE) if png.startswith(SIGNATURE) else len(png)
    while position + 12 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, position)
        if kind == b"IDAT" or position + 12 + length > len(png):
            return
        yield kind, png[position + 8 : position + 8 + length]
        position += 12 + length


_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_GREY_TYPE, _PALETTE_TYPE = 0, 3
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# For each pass: first column and row, and the distance to the next ones.
_PLAIN = ((0, 0, 1, 1),)
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_PART_BYTES = 1 << 20
_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT")
_MAX_SIZES = {b"IHDR": 13, b"PLTE": 768, b"tRNS": 256, b"IEND": 0}
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")


@dataclass(frozen=True)
class _Chunk:
    """Locate a chunk: `start` and `end` of its content."""

    kind: bytes
    start: int
    end: int


def size(data: bytes) -> tuple[int, int]:
    """Return (width, height) of a still image with valid chunks. Raises BadImage or struct.error."""
    chunks = list(_chunks(data))
    _check_order([chunk.kind for chunk in chunks])
    width, height, depth, colour, compression, filters, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    require(depth in _DEPTHS.get(colour, ()), f"no colour type {colour} has {depth} bits")
    require((compression, filters) == (0, 0) and interlace in (0, 1), "an unknown compression")
    require(colour != _PALETTE_TYPE or any(chunk.kind == b"PLTE" for chunk in chunks), "its palette is missing")
    return width, height


def orientation(data: bytes) -> int:
    """Return the EXIF orientation (1 to 8) of an image in a valid container."""
    found = (data[chunk.start : chunk.end] for chunk in _chunks(data) if chunk.kind == b"eXIf")
    return orientation_of(next(found, b""))


def essence(data: bytes) -> bytes:
    """Return the image without metadata, its compressed data in one chunk. Raises BadImage for a wrong checksum."""
    parts = _kept_parts(data)
    if b"tRNS" in parts:
        parts[b"tRNS"] = _transparency(parts[b"IHDR"], parts[b"tRNS"])
    return png_file(*(png_chunk(kind, bytes(parts[kind])) for kind in _KEPT if kind in parts))


def check_pixels(data: bytes) -> None:
    """Check that a valid container has all rows. They are inflated in parts and not stored. Raises BadImage."""
    parts = _kept_parts(data)
    missing, stream, inflater = _row_bytes(parts[b"IHDR"]), bytes(parts[b"IDAT"]), zlib.decompressobj()
    try:
        while missing > 0 and not inflater.eof:
            rows = inflater.decompress(stream, _PART_BYTES)
            stream = inflater.unconsumed_tail
            missing -= len(rows)
            if not rows and not stream:
                break
    except zlib.error:
        raise BadImage("its pixels are damaged") from None
    require(missing <= 0, "its pixels are cut short")


def _row_bytes(header: bytearray) -> int:
    """Return the bytes of all rows, each with its filter byte."""
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    bits = depth * _CHANNELS[colour]
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in (_ADAM7 if interlace else _PLAIN)]
    return sum(rows * (1 + (columns * bits + 7) // 8) for columns, rows in sizes if columns > 0 and rows > 0)


def _kept_parts(data: bytes) -> dict[bytes, bytearray]:
    parts: dict[bytes, bytearray] = {}
    for chunk in _chunks(data):
        if chunk.kind in _KEPT:
            (stated,) = struct.unpack_from(">I", data, chunk.end)
            require(zlib.crc32(data[chunk.start - 4 : chunk.end]) == stated, f"the sum of {_shown(chunk)} is wrong")
            parts.setdefault(chunk.kind, bytearray()).extend(memoryview(data)[chunk.start : chunk.end])
    return parts


def _transparency(header: bytearray, clear: bytearray) -> bytearray:
    """Return the transparent value as Pillow reads it: grey of few bits scaled to eight, as it reads the pixels."""
    depth, colour = header[8:10]
    if colour != _GREY_TYPE or depth >= 8:
        return clear
    most = (1 << depth) - 1
    (grey,) = struct.unpack(">H", clear)
    return bytearray(struct.pack(">H", (grey & most) * 255 // most))


def _chunks(data: bytes) -> Iterator[_Chunk]:
    """Yield the chunks up to IEND; later bytes do not belong to the image."""
    offset = len(SIGNATURE)
    for _ in range(MAX_PARTS):
        length, kind = struct.unpack_from(">I4s", data, offset)
        chunk = _Chunk(kind, offset + 8, offset + 8 + length)
        require(chunk.end + 4 <= len(data), "cut short")
        _check_chunk(chunk)
        yield chunk
        if kind == b"IEND":
            return
        offset = chunk.end + 4
    raise BadImage(f"more than {MAX_PARTS} chunks")


def _check_chunk(chunk: _Chunk) -> None:
    is_critical = not chunk.kind[0] & 0x20
    require(not is_critical or chunk.kind in (*_KEPT, b"IEND"), f"an unknown chunk {_shown(chunk)}")
    require(chunk.kind not in _ANIMATION, "an animation; only still images are accepted")
    limit = _MAX_SIZES.get(chunk.kind)
    require(limit is None or chunk.end - chunk.start <= limit, f"{_shown(chunk)} has more than {limit} bytes")


def _shown(chunk: _Chunk) -> str:
    return repr(chunk.kind.decode("latin-1"))


def _check_order(kinds: list[bytes]) -> None:
    """Check the kept chunks: one of each, in their order, IDATs in a row."""
    require(kinds[0] == b"IHDR", "it does not begin with IHDR")
    kept = [kind for kind in kinds if kind in _KEPT]
    for kind in (b"IHDR", b"PLTE", b"tRNS"):
        require(kept.count(kind) <= 1, f"more than one {kind.decode()}")
    require(b"IDAT" in kept, "it has no IDAT")
    require(kept == sorted(kept, key=_KEPT.index), "its chunks are out of order")
    first, count = kinds.index(b"IDAT"), kinds.count(b"IDAT")
    require(kinds[first : first + count] == [b"IDAT"] * count, "its IDATs are apart")
