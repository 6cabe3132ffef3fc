"""Encoded sample images: real ones of Pillow, and constructed containers."""

import io
import struct
import zlib
from collections.abc import Sequence

from PIL import Image

from pentimento.images.png import png_chunk, png_file


def encoded(image_format: str, size: tuple[int, int] = (37, 21), mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    colour = (10, 200, 30, 128)[: len(Image.new(mode, (1, 1)).getbands())]
    Image.new(mode, size, colour if len(colour) > 1 else 1).save(buffer, image_format, **options)
    return buffer.getvalue()


def noise(image_format: str, size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(buffer, image_format, **options)
    return buffer.getvalue()


def ihdr(width: int, height: int, depth: int = 8, colour: int = 0, interlace: int = 0) -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def idat(width: int, height: int) -> bytes:
    """Return IDAT of grey pixels, 8 bits."""
    return png_chunk(b"IDAT", zlib.compress((b"\0" + b"\x80" * width) * height))


def grey_png(*between: bytes, size: tuple[int, int] = (8, 6)) -> bytes:
    """Return a grey PNG with chunks between its header and its pixels."""
    return png_file(ihdr(*size), *between, idat(*size))


def wide_grey_png(row: Sequence[int], transparent: int | None = None) -> bytes:
    """Return a grey PNG of 16 bits and one row; `transparent` is the transparent value."""
    pixels = png_chunk(b"IDAT", zlib.compress(b"\0" + struct.pack(f">{len(row)}H", *row)))
    clear = [] if transparent is None else [png_chunk(b"tRNS", struct.pack(">H", transparent))]
    return png_file(ihdr(len(row), 1, depth=16), *clear, pixels)


def one_row_png(depth: int, colour: int, width: int, row: bytes, clear: bytes, interlace: int = 0) -> bytes:
    """Return a PNG of that bit depth and colour type; `clear` is the content of tRNS, `row` the pixels."""
    pixels = png_chunk(b"IDAT", zlib.compress(b"\0" + row))
    return png_file(ihdr(width, 1, depth, colour, interlace), png_chunk(b"tRNS", clear), pixels)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WEBP" + b"".join(
        kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2) for kind, content in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def vp8x(width: int, height: int, flags: int = 0) -> tuple[bytes, bytes]:
    content = bytes([flags, 0, 0, 0]) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"VP8X", content


def webp_frame(size: tuple[int, int], lossless: bool = False) -> tuple[bytes, bytes]:
    data = encoded("webp", size, lossless=lossless)
    (length,) = struct.unpack_from("<I", data, 16)
    return data[12:16], data[20 : 20 + length]


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg_parts(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the bytes before the frame header, the frame header, the rest, and the end marker."""
    offset = 2
    while data[offset + 1] not in (0xC0, 0xC2):
        offset += 2 + struct.unpack_from(">H", data, offset + 2)[0]
    end = offset + 2 + struct.unpack_from(">H", data, offset + 2)[0]
    return data[:offset], data[offset:end], data[end:-2], data[-2:]
