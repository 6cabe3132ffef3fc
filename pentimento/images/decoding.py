"""Decode images to pixels, through Pillow.

Pillow receives only the parts of an image that hold pixels: compressed texts, profiles, previews and further frames are
removed. One image of a process is decoded at a time, which bounds the memory for any number of callers.
"""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from PIL import Image, ImageChops, ImageFile

from pentimento.domain.errors import InvalidArgument
from pentimento.images import jpeg, png, webp
from pentimento.images.header import MAX_PIXELS, ImageHeader, read_header

T = TypeVar("T")

_ESSENCES: dict[str, Callable[[bytes], bytes]] = {"png": png.essence, "jpeg": jpeg.essence, "webp": webp.essence}
# A separate thread, too: memory that many threads free in turn stays in each thread's allocator.
_ONE_AT_A_TIME = ThreadPoolExecutor(1, thread_name_prefix="images")
_STRIP_PX = 128
_OPAQUE = 255
_WIDE_MODES = ("I;16", "I;16B")
# Turns an image upright that is stored with this EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes, field: str, then: Callable[[Image.Image], T]) -> T:
    """Return `then` of an RGB image, transparency on white, turned as its EXIF says (as diffusers' `load_image` and
    browsers do); run in the decoding thread. Blocks while other images are decoded.

    Raises InvalidArgument naming `field` for images that `read_header` rejects, and for damaged or missing pixels.
    """
    return _decoded(data, field, _on_white, then)


def decode_with_mask(data: bytes, field: str, then: Callable[[Image.Image, Image.Image | None], T]) -> T:
    """Return `then` of the image of `decode` and of the image's mask, greyscale and white at transparent pixels; None
    if all pixels are opaque. Runs as `decode` does."""
    return _decoded(data, field, _with_own_mask, lambda image: then(image.convert("RGB"), _own_mask(image)))


def decode_mask(data: bytes, field: str, then: Callable[[Image.Image, bool], T]) -> T:
    """Return `then` of a greyscale mask, white at pixels that may change, and whether transparency defines it. If any
    pixel is transparent, transparent ones may change (as in OpenAI's API), else white ones (as in diffusers). Runs as
    `decode` does."""
    is_transparent = False

    def change(image: Image.Image) -> Image.Image:
        nonlocal is_transparent
        image = _of_eight_bits(image)
        clear = _transparency(image)
        is_transparent = clear is not None
        return _on_white(image).convert("L") if clear is None else clear

    return _decoded(data, field, change, lambda image: then(image, is_transparent))


def _decoded(
    data: bytes, field: str, change: Callable[[Image.Image], Image.Image], then: Callable[[Image.Image], T]
) -> T:
    header = read_header(data, field)
    return _ONE_AT_A_TIME.submit(lambda: then(_checked(data, header, field, change))).result()


def _checked(data: bytes, header: ImageHeader, field: str, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    try:
        return _decode(data, header, change)
    except MemoryError:
        raise
    except Exception:  # hostile bytes may cause any error in a decoder
        wanted = f"must be a whole {header.format.upper()} image, got one that does not decode"
        raise InvalidArgument.of(field, wanted) from None


def _decode(data: bytes, header: ImageHeader, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    essence = io.BytesIO(_ESSENCES[header.format](data))
    with Image.open(essence, formats=[header.format.upper()]) as image:
        if image.size != header.stored_size or getattr(image, "n_frames", 1) != 1:
            raise ValueError("the decoder sees another image than was validated")
        wide_tile = _wide_tile(image)
        image.load()
        if wide_tile is not None:
            with Image.open(essence, formats=["PNG"]) as lower:
                lower.tile = [wide_tile]
                lower.load()
                image.putalpha(_wide_alpha(image, lower))
        changed = change(image)
    turn = _TURNS.get(header.orientation)
    return changed if turn is None else changed.transpose(turn)


def _wide_tile(image: ImageFile.ImageFile) -> ImageFile._Tile | None:
    """Return the tile that reads the lower bytes of a 16-bit colour image with a transparent colour: Pillow compares
    that colour only with the upper ones. None for any other image."""
    is_clear = "transparency" in image.info
    return next((tile._replace(args="RGB;16L") for tile in image.tile if is_clear and tile.args == "RGB;16B"), None)


def _wide_alpha(upper: Image.Image, lower: Image.Image) -> Image.Image:
    """Return an alpha band, as in browsers: opaque if any byte differs from the transparent colour's."""
    clear = upper.info.pop("transparency")
    alpha = Image.new("L", upper.size)
    for index, value in enumerate(clear):
        for half, byte in ((upper, value >> 8), (lower, value & 0xFF)):
            differs = half.getchannel(index).point([_OPAQUE * (one != byte) for one in range(256)])
            alpha = ImageChops.lighter(alpha, differs)
    return alpha


def _transparency(image: Image.Image) -> Image.Image | None:
    """Return the transparency of each pixel, 0 to 255; None if all are opaque."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return None
    alpha = image.convert("RGBA").getchannel("A")
    return ImageChops.invert(alpha) if min(alpha.tobytes()) < _OPAQUE else None


def _with_own_mask(image: Image.Image) -> Image.Image:
    """Return RGB on white; if a pixel is transparent, with a fourth band of transparency."""
    clear = _transparency(_of_eight_bits(image))
    opaque = _on_white(image)
    if clear is not None:
        opaque.putalpha(clear)
    return opaque


def _own_mask(image: Image.Image) -> Image.Image | None:
    return image.getchannel("A") if image.mode == "RGBA" else None


def _on_white(image: Image.Image) -> Image.Image:
    """Return the image on white, converted in strips, so that memory holds only one image and its conversion."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()
    opaque = Image.new("RGB", image.size)
    for top in range(0, image.height, _STRIP_PX):
        strip = image.crop((0, top, image.width, min(top + _STRIP_PX, image.height)))
        opaque.paste(_strip_on_white(strip), (0, top))
    return opaque


def _of_eight_bits(image: Image.Image) -> Image.Image:
    """Return the upper eight of 16 bits of grey, as Pillow reads 16 bits of colour: it takes all grey above 255 as
    white."""
    if image.mode not in _WIDE_MODES:
        return image
    grey = image.point(lambda value: value * (1 / 256)).convert("L")
    clear = image.info.get("transparency")
    if clear is None:
        return grey
    alpha = image.convert("I").point([_OPAQUE * (value != clear) for value in range(1 << 16)], "L")
    return Image.merge("LA", (grey, alpha))


def _strip_on_white(strip: Image.Image) -> Image.Image:
    strip = _of_eight_bits(strip)
    if "A" not in strip.getbands() and strip.info.get("transparency") is None:
        return strip.convert("RGB")
    white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB")


def resized(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """Return `image` at `size` (width, height), as Pillow resizes it: first its width, then its height.

    If the intermediate image would exceed the largest accepted one, the order is reversed.
    """
    width, height = size
    if width * image.height > MAX_PIXELS:
        image = image.resize((image.width, height), resample)
    return image.resize(size, resample)
