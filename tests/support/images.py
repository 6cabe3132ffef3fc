"""Small images for requests and comparisons."""

import io

from PIL import Image


def a_png(width_px: int = 64, height_px: int = 64, colour: str = "red") -> bytes:
    """Return a PNG file of one colour."""
    return png_of(Image.new("RGB", (width_px, height_px), colour))


def png_of(image: Image.Image, **options: object) -> bytes:
    """Return an image as a PNG file. `options` are those of Pillow's encoder."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()
