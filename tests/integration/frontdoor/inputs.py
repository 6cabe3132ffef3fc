"""Make input images of requests, and break the store that holds them."""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "png")
    return buffer.getvalue()


def png_of_bytes(count: int) -> bytes:
    """Return an image with a file of that size, most of it an ignored chunk."""
    whole, end = png()[:-12], png()[-12:]
    content = b"noNe" + bytes(count - len(whole) - len(end) - 12)
    return whole + struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content)) + end


@contextmanager
def store_away(folder: Path) -> Iterator[None]:
    """Replace the store's directory by a file, as if its volume was unmounted, and restore it with its contents."""
    objects = folder / "objects"
    objects.rename(folder / "unmounted")
    objects.write_bytes(b"")
    try:
        yield
    finally:
        objects.unlink()
        (folder / "unmounted").rename(objects)
