"""Images that requests come with."""

import io

from PIL import Image


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "png")
    return buffer.getvalue()
