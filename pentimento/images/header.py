"""Read format and size of an encoded image from its container; nothing is decoded, so nothing can explode.

Magic bytes identify PNG, JPEG and WebP; other formats are rejected. The limits are those of every service.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from pentimento.domain.errors import InvalidArgument
from pentimento.images import jpeg, png, webp
from pentimento.images.container import FIRST_ON_ITS_SIDE, UPRIGHT, BadImage

# A 4K screen. Decoding takes at most some 170 MB, for any format.
MAX_PIXELS = 8 * 1024 * 1024
# A very flat image would grow without bounds when its shortest edge is scaled up.
MAX_ASPECT_RATIO = 20

_SIZES: dict[str, Callable[[bytes], tuple[int, int]]] = {"png": png.size, "jpeg": jpeg.size, "webp": webp.size}


_ORIENTATIONS: dict[str, Callable[[bytes], int]] = {
    "png": png.orientation,
    "jpeg": jpeg.orientation,
    "webp": webp.orientation,
}


@dataclass(frozen=True)
class ImageHeader:
    """Hold format and size of an image as shown: turned as its EXIF says (`orientation`, 1 to 8)."""

    format: str
    width_px: int
    height_px: int
    orientation: int = UPRIGHT

    @property
    def stored_size(self) -> tuple[int, int]:
        """Return width and height before the turn."""
        return _turned((self.width_px, self.height_px), self.orientation)


def read_header(data: bytes, field: str) -> ImageHeader:
    """Return the header. Raises InvalidArgument naming `field` for another format, a damaged container, or a size
    outside the limits."""
    image_format = _format(data)
    if image_format is None:
        raise InvalidArgument.of(field, "must be a PNG, JPEG or WebP image, got something else or a part of one")
    try:
        stored, orientation = _SIZES[image_format](data), _ORIENTATIONS[image_format](data)
        header = ImageHeader(image_format, *_turned(stored, orientation), orientation)
    except BadImage as error:
        raise InvalidArgument.of(field, f"must be a whole {image_format.upper()} image: {error}") from None
    except (struct.error, IndexError):
        raise InvalidArgument.of(field, f"must be a whole {image_format.upper()} image, got a part of one") from None
    _check_size(header, field)
    return header


def check_whole(data: bytes, field: str) -> None:
    """Check an image without a decoder: as `read_header` does, and that a PNG has all its pixels. Inflates up to 64 MiB
    of pixels, a part at a time. Raises InvalidArgument naming `field`."""
    if read_header(data, field).format != "png":
        return
    try:
        png.check_pixels(data)
    except BadImage as error:
        raise InvalidArgument.of(field, f"must be a whole PNG image: {error}") from None


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return the size after a turn, or before it: both are the same operation."""
    width, height = size
    return (height, width) if orientation >= FIRST_ON_ITS_SIDE else (width, height)


def _format(data: bytes) -> str | None:
    if data.startswith(png.SIGNATURE):
        return "png"
    if data.startswith(jpeg.MAGIC):
        return "jpeg"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _check_size(header: ImageHeader, field: str) -> None:
    width, height = header.width_px, header.height_px
    if width < 1 or height < 1:
        raise InvalidArgument.of(field, f"must have at least 1 pixel, got {width} x {height}")
    if width * height > MAX_PIXELS:
        raise InvalidArgument.of(field, f"must have at most {MAX_PIXELS} pixels, got {width} x {height}")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        limit = f"must be at most {MAX_ASPECT_RATIO} times as long as wide"
        raise InvalidArgument.of(field, f"{limit}, got {width} x {height}")
