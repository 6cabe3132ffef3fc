"""Format and size of an encoded image, read off its header: nothing is decoded, so nothing can explode.

PNG, JPEG and WebP by their magic bytes (RFC 2083, ITU-T T.81, the WebP container specification); the rest is refused.
"""

import struct
from dataclasses import dataclass

from pentimento.domain.errors import InvalidArgument

# A JPEG's frame header follows its tables and metadata; what lies further in is not a picture but a hiding place.
_MAX_JPEG_SEGMENTS = 512
# Start-of-frame markers: SOF0..SOF15 without DHT, JPG and DAC, which share the range.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True)
class ImageHeader:
    format: str
    width_px: int
    height_px: int


def read_image_header(data: bytes, field: str) -> ImageHeader:
    """The header of a PNG, JPEG or WebP; InvalidArgument naming `field` for anything else or a cut one."""
    try:
        header = _read(data)
    except (struct.error, IndexError):
        header = None
    if header is None or header.width_px < 1 or header.height_px < 1:
        raise InvalidArgument.of(field, "must be a PNG, JPEG or WebP image, got something else or a part of one")
    return header


def _read(data: bytes) -> ImageHeader | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return ImageHeader("png", *struct.unpack_from(">II", data, 16))
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _read_webp(data)
    return None


def _read_jpeg(data: bytes) -> ImageHeader | None:
    offset = 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        while data[offset] == 0xFF and data[offset + 1] == 0xFF:
            offset += 1
        marker, length = struct.unpack_from(">xBH", data, offset)
        if data[offset] != 0xFF or length < 2:
            return None
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, offset + 5)
            return ImageHeader("jpeg", width, height)
        offset += 2 + length
    return None


def _read_webp(data: bytes) -> ImageHeader | None:
    chunk = data[12:16]
    if chunk == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif chunk == b"VP8L" and data[20] == 0x2F:
        bits = struct.unpack_from("<I", data, 21)[0]
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        return None
    return ImageHeader("webp", width, height) if len(data) >= 30 else None
