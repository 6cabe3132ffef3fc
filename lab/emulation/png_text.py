"""Read and write text in PNG files (tEXt chunks, PNG specification 11.3.4.3), without decoding them.

An emulated device adds to a recorded image the values that a real one would only have shown: the discriminator's
confidence and the image's quality.
"""

import struct
import zlib

from pentimento.images.png import HEADER_END, SIGNATURE, leading_chunks, png_chunk, png_file


def with_text(png: bytes, keyword: str, text: str) -> bytes:
    """Return the image with one more text, right after its header. ValueError if it is no PNG, or the keyword or text
    is invalid in a PNG (Latin-1, the keyword 1 to 79 characters)."""
    if not png.startswith(SIGNATURE) or png[12:16] != b"IHDR" or len(png) < HEADER_END:
        raise ValueError("not a PNG")
    if not 1 <= len(keyword) <= 79 or "\0" in keyword + text:
        raise ValueError("a PNG takes keywords of 1 to 79 characters, and no NUL")
    return png[:HEADER_END] + png_chunk(b"tEXt", f"{keyword}\0{text}".encode("latin-1")) + png[HEADER_END:]


def text_of(png: bytes, keyword: str) -> str | None:
    """Return the first text under that keyword; None without one, and if the bytes are no PNG."""
    wanted = keyword.encode("latin-1", errors="replace") + b"\0"
    found = (data for kind, data in leading_chunks(png) if kind == b"tEXt" and data.startswith(wanted))
    data = next(found, None)
    return None if data is None else data[len(wanted) :].decode("latin-1")


def flat_png(width_px: int, height_px: int, colour: tuple[int, int, int]) -> bytes:
    """Return a PNG of one colour, from a palette, one bit a pixel."""
    header = struct.pack(">IIBBBBB", width_px, height_px, 1, 3, 0, 0, 0)
    rows = bytes(1 + (width_px + 7) // 8) * height_px
    chunks = ((b"IHDR", header), (b"PLTE", bytes(colour)), (b"IDAT", zlib.compress(rows)))
    return png_file(*(png_chunk(kind, content) for kind, content in chunks))
