"""Write the chunks of PNG files (RFC 2083, section 3), and read those before the pixels without decoding."""

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER_END = 33  # signature, and IHDR: length, type, 13 bytes, checksum


def png_chunk(kind: bytes, content: bytes = b"") -> bytes:
    """Return a chunk with its length and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))


def png_file(*chunks: bytes) -> bytes:
    """Return a file with these chunks, from its signature to IEND."""
    return SIGNATURE + b"".join(chunks) + png_chunk(b"IEND")


def leading_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, content) up to the first pixels, or the first incomplete chunk; nothing if the bytes are no PNG."""
    position = len(SIGNATURE) if png.startswith(SIGNATURE) else len(png)
    while position + 12 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, position)
        if kind == b"IDAT" or position + 12 + length > len(png):
            return
        yield kind, png[position + 8 : position + 8 + length]
        position += 12 + length
