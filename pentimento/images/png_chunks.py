"""Write the chunks of PNG files (RFC 2083, section 3), and read those before the pixels without decoding."""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

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
