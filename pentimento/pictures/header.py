"""Format and size of an encoded picture, read off its container: nothing is decoded, so nothing can explode.

PNG, JPEG and WebP are told by their magic bytes; the rest is refused. The limits are those of every service.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from pentimento.domain.errors import InvalidArgument
from pentimento.pictures import jpeg, png, png_chunks, webp
from pentimento.pictures.container import BadPicture

# A 4K screen's. Decoding so many takes at most some 170 MB, whatever the format.
MAX_PIXELS = 8 * 1024 * 1024
# A very flat picture would grow without bounds when its shortest edge is scaled up.
MAX_ASPECT_RATIO = 20

_SIZES: dict[str, Callable[[bytes], tuple[int, int]]] = {"png": png.size, "jpeg": jpeg.size, "webp": webp.size}


@dataclass(frozen=True)
class PictureHeader:
    format: str
    width_px: int
    height_px: int


def read_header(data: bytes, field: str) -> PictureHeader:
    """Raises InvalidArgument naming `field` for another format, a damaged container, or a size outside the limits."""
    picture_format = _format(data)
    if picture_format is None:
        raise InvalidArgument.of(field, "must be a PNG, JPEG or WebP image, got something else or a part of one")
    try:
        header = PictureHeader(picture_format, *_SIZES[picture_format](data))
    except BadPicture as error:
        raise InvalidArgument.of(field, f"must be a whole {picture_format.upper()} image: {error}") from None
    except (struct.error, IndexError):
        raise InvalidArgument.of(field, f"must be a whole {picture_format.upper()} image, got a part of one") from None
    _check_size(header, field)
    return header


def _format(data: bytes) -> str | None:
    if data.startswith(png_chunks.SIGNATURE):
        return "png"
    if data.startswith(jpeg.MAGIC):
        return "jpeg"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _check_size(header: PictureHeader, field: str) -> None:
    width, height = header.width_px, header.height_px
    if width < 1 or height < 1:
        raise InvalidArgument.of(field, f"must have at least 1 pixel, got {width} x {height}")
    if width * height > MAX_PIXELS:
        raise InvalidArgument.of(field, f"must have at most {MAX_PIXELS} pixels, got {width} x {height}")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        limit = f"must be at most {MAX_ASPECT_RATIO} times as long as wide"
        raise InvalidArgument.of(field, f"{limit}, got {width} x {height}")
