"""Convert pixels and latents between tensors and encoded bytes.

PNG (RFC 2083) is encoded here, faster than by Pillow: a row's filter is chosen on the device of the pixels, and zlib
searches only for runs. Files of photographs are no larger than with a search for repetitions, in a fifth of the time.
The encoding releases the interpreter lock, which Pillow holds: the device would idle until another thread could launch
the next step.

A latent is one safetensors tensor at unit variance, optionally in half precision. Stored exactly and resumed by the
same sampler, the remaining steps give the bits of an uninterrupted run with DDIM, and stay within 1e-4 of it with
Euler: its scale costs one rounding each way. `benchmarks.latent_storage` measures the effect of half precision on the
final image.
"""

import io
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import adaptive_max_pool2d

from pentimento.devices.choices import LatentFormat
from pentimento.domain.errors import InvalidArgument
from pentimento.images import read_header
from pentimento.images.container import IMAGE_FORMATS
from pentimento.images.decoding import decode, decode_with_mask, resized
from pentimento.images.decoding import decode_mask as decode_grey_mask
from pentimento.images.png import png_chunk, png_file

CHANNELS = 3
# Pixels filtered at a time: on a CPU the intermediate results fit the cache; on a GPU large bands need fewer launches.
_HOST_BAND, _DEVICE_BAND = 2**15, 2**20
_HEADER = struct.Struct(">IIBBBBB")
_BITS, _RGB = 8, 2


def filtered_rows(pixels: Tensor) -> Tensor:
    """Return pixels (height, width, 3) of bytes as rows of PNG (height, 1 + 3 * width), on their device: each row
    starts with the number of the filter with the smallest sum of differences (RFC 2083, section 9.6)."""
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * CHANNELS).to(torch.int16)
    # Before the first row, and left of each, there are zeros.
    known = functional.pad(rows, (CHANNELS, 0, 1, 0))
    band = max((_HOST_BAND if pixels.device.type == "cpu" else _DEVICE_BAND) // width, 1)
    return torch.cat([_filtered(known[first : first + band + 1]) for first in range(0, height, band)])


def _filtered(known: Tensor) -> Tensor:
    """Return the filtered rows except the first, which is only the row above."""
    rows, left = known[1:, CHANNELS:], known[1:, :-CHANNELS]
    above, corner = known[:-1, CHANNELS:], known[:-1, :-CHANNELS]
    guesses = (torch.zeros_like(rows), left, above, (left + above) >> 1, _paeth(left, above, corner))
    differences = torch.stack([rows - guess for guess in guesses]).to(torch.uint8)
    sizes = differences.view(torch.int8).abs().view(torch.uint8).sum(dim=2, dtype=torch.int64)
    chosen = sizes.argmin(dim=0)
    taken = differences.gather(0, chosen[None, :, None].expand(1, *rows.shape))[0]
    return torch.cat([chosen[:, None].to(torch.uint8), taken], dim=1)


def _paeth(left: Tensor, above: Tensor, corner: Tensor) -> Tensor:
    """Return the neighbour nearest to left + above - corner."""
    to_left, to_above = (above - corner).abs(), (left - corner).abs()
    to_corner = (left + above - 2 * corner).abs()
    other = torch.where(to_above <= to_corner, above, corner)
    return torch.where((to_left <= to_above) & (to_left <= to_corner), left, other)


def png_of_rows(rows: Tensor) -> bytes:
    """Return the PNG file of rows from `filtered_rows`, in host memory."""
    height, width = rows.shape[0], (rows.shape[1] - 1) // CHANNELS
    deflate = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    content = deflate.compress(rows.numpy().data) + deflate.flush()
    return png_file(png_chunk(b"IHDR", _HEADER.pack(width, height, _BITS, _RGB, 0, 0, 0)), png_chunk(b"IDAT", content))


# The request field of a ControlNet's image.
CONDITION_FIELD = "controlnet.conditioning_image"
NOTHING_WHITE = "must be white somewhere, where the image may change; it is all black (white is 128 to 255 of 255)"
NOTHING_TRANSPARENT = (
    "must be transparent somewhere, where the image may change; no pixel of its alpha channel is below 128 of 255"
)


def encode_pixels(
    pixels: Tensor, image_format: str, max_side_px: int | None = None, quality: int | None = None
) -> bytes:
    """Return pixels (1, 3, height, width) in -1..1 as one of IMAGE_FORMATS, shrunk to `max_side_px` if that is given.
    `quality` of JPEG and WebP is 0 to 100; None is Pillow's default, 75 and 80.

    Raises ValueError if a pixel is not finite.
    """
    own = pixel_bytes(pixels)
    if image_format == "png" and max_side_px is None:
        return png_of_rows(filtered_rows(own).cpu())
    return encode_bytes(own.cpu(), image_format, max_side_px, quality)


def encode_bytes(
    pixels: Tensor, image_format: str, max_side_px: int | None = None, quality: int | None = None
) -> bytes:
    """Return bytes (height, width, 3) in host memory encoded as by `encode_pixels`, with Pillow."""
    image = Image.fromarray(pixels.numpy())
    if max_side_px is not None:
        image.thumbnail((max_side_px, max_side_px))
    buffer = io.BytesIO()
    image.save(buffer, IMAGE_FORMATS[image_format], **({} if quality is None else {"quality": quality}))
    return buffer.getvalue()


def pixel_bytes(pixels: Tensor) -> Tensor:
    """Return pixels (1, 3, height, width) in -1..1 as bytes (height, width, 3), on their device, rounded as diffusers'
    VaeImageProcessor rounds. Raises ValueError if one is not finite."""
    if not torch.isfinite(pixels).all():
        raise ValueError("pixels that are not finite")
    unit = (pixels[0].float() * 0.5 + 0.5).clamp_(0, 1)
    return unit.mul_(255).round_().to(torch.uint8).permute(1, 2, 0).contiguous()


def pixel_image(pixels: Tensor) -> Image.Image:
    """Return pixels (1, 3, height, width) in 0..1 as an image of 256 levels."""
    return Image.fromarray((pixels[0] * 255.0).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy())


def decode_pixels(data: bytes, field: str, width_px: int, height_px: int) -> Tensor:
    """Return an encoded image as pixels (1, 3, height, width) in -1..1, resized (Lanczos) if its size differs.

    Raises InvalidArgument naming `field` for an image that `pentimento.images` rejects.
    """
    return decode(data, field, lambda picture: _to_pixels(picture, (width_px, height_px)))


def decode_pixels_and_mask(data: bytes, field: str, width_px: int, height_px: int) -> tuple[Tensor, Tensor | None]:
    """Return the pixels as `decode_pixels`, and the mask of the image's transparency as `decode_mask`: transparent
    pixels may change, as in OpenAI's API. The mask is None if no pixel, or every pixel, is more transparent than
    opaque.

    Raises InvalidArgument naming `field` for an image that `pentimento.images` rejects.
    """
    size = (width_px, height_px)

    def tensors(picture: Image.Image, mask: Image.Image | None) -> tuple[Tensor, Tensor | None]:
        levels = None if mask is None else _to_mask(mask, size)
        return _to_pixels(picture, size), None if levels is None or _is_uniform(levels) else levels

    return decode_with_mask(data, field, tensors)


def decode_mask(data: bytes, field: str, width_px: int, height_px: int) -> Tensor | None:
    """Return an encoded mask as (1, 1, height, width) of 0 and 1, as in diffusers' inpainting pipelines: resized
    (Lanczos) if its size differs, 1 from middle grey on. If the mask has transparent pixels, 1 from middle transparency
    on. A region that resizing would lose keeps one pixel. None if all of the image may change.

    Raises InvalidArgument naming `field` for an image that `pentimento.images` rejects, and for a mask that lets
    nothing change.
    """

    def tensor(picture: Image.Image, is_transparent: bool) -> Tensor | None:
        mask = _to_mask(picture, (width_px, height_px))
        if not mask.any():
            raise InvalidArgument.of(field, NOTHING_TRANSPARENT if is_transparent else NOTHING_WHITE)
        return None if _is_uniform(mask) else mask

    return decode_grey_mask(data, field, tensor)


def decode_condition(data: bytes, field: str, width_px: int, height_px: int) -> Tensor:
    """Return an encoded image as pixels (1, 3, height, width) in 0..1, as in diffusers' ControlNet pipelines.

    Raises InvalidArgument naming `field` for an image that `pentimento.images` rejects.
    """
    return decode(data, field, lambda picture: _to_unit(picture, (width_px, height_px)))


def condition_of_size(data: bytes, width_px: int, height_px: int) -> Tensor:
    """Return a ControlNet's image as pixels (1, 3, height, width) in 0..1. Blocks while others decode.

    Raises InvalidArgument naming its field for data that is no image, is damaged, or has another size; an image with
    another size in its header is not decoded.
    """
    header = read_header(data, CONDITION_FIELD)
    if (header.width_px, header.height_px) != (width_px, height_px):
        limit = f"must be of the image's size, {width_px} x {height_px}"
        raise InvalidArgument.of(CONDITION_FIELD, f"{limit}, got {header.width_px} x {header.height_px}")
    return decode_condition(data, CONDITION_FIELD, width_px, height_px)


def _to_pixels(picture: Image.Image, size: tuple[int, int]) -> Tensor:
    return _to_unit(picture, size).mul_(2.0).sub_(1.0)


def _to_mask(picture: Image.Image, size: tuple[int, int]) -> Tensor:
    mask = _thresholded(picture)
    if picture.size == size:
        return mask
    return kept_after_sampling(mask, _thresholded(resized(picture, size, Image.Resampling.LANCZOS)))


def _thresholded(picture: Image.Image) -> Tensor:
    grey = torch.from_numpy(np.array(picture))
    return (grey >= 128).to(torch.float32)[None, None]


def _is_uniform(mask: Tensor) -> bool:
    return bool(mask.min() == mask.max())


def kept_after_sampling(mask: Tensor, sampled: Tensor) -> Tensor:
    """Return a smaller version of a mask of 0 and 1 (1, 1, height, width): `sampled`, unless it has lost all ones or
    all zeros of the mask. In that case every cell that covers a lost value has that value."""
    size = (int(sampled.shape[-2]), int(sampled.shape[-1]))
    if mask.any() and not sampled.any():
        return adaptive_max_pool2d(mask, size)
    if not mask.all() and sampled.all():
        return 1 - adaptive_max_pool2d(1 - mask, size)
    return sampled


def _to_unit(picture: Image.Image, size: tuple[int, int]) -> Tensor:
    if picture.size != size:
        picture = resized(picture, size, Image.Resampling.LANCZOS)
    values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).unsqueeze(0)
    return values.to(torch.float32, memory_format=torch.contiguous_format).div_(255.0)


_NAME = "latent"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDEST_ITEM_BYTES = 4
_MAX_HEADER_BYTES = 4096


class UnknownLatentFormat(ValueError):
    """Report a stored latent in a format unknown to this version. Its bytes may be valid."""


def latent_to_bytes(latent: Tensor, format: LatentFormat = LatentFormat.EXACT) -> bytes:
    """Return a latent (1, channels, height, width) as stored bytes. A latent out of half precision's range, or already
    in half precision, is stored unchanged."""
    own = latent.detach().cpu()
    return bytes(save({_NAME: (own if format is LatentFormat.EXACT else _narrowed(own)).contiguous()}))


def latent_from_bytes(data: bytes, shape: Sequence[int]) -> Tensor:
    """Return the latent of stored bytes, in the element type that it was stored in.

    Raises ValueError if the bytes are no latent of that shape, or hold NaN or infinities; UnknownLatentFormat, a
    ValueError, if another version wrote their format. Allocates no more than a latent of that shape takes.
    """
    most_bytes = math.prod(shape) * _WIDEST_ITEM_BYTES + _MAX_HEADER_BYTES
    if len(data) > most_bytes:
        raise ValueError(f"a file of {len(data)} bytes, where at most {most_bytes} can be")
    try:
        latent: Tensor = load(data)[_NAME]
    except (SafetensorError, KeyError):
        raise ValueError("not a stored latent") from None
    if latent.dtype not in _DTYPES:
        raise UnknownLatentFormat(f"a latent of {latent.dtype}")
    if tuple(latent.shape) != tuple(shape):
        raise ValueError(f"a latent of shape {list(latent.shape)}, wanted {list(shape)}")
    if not torch.isfinite(latent).all():
        raise ValueError("a latent with values that are not finite")
    return latent


def _narrowed(latent: Tensor) -> Tensor:
    if latent.dtype is not torch.float32:
        return latent
    narrow = latent.to(torch.float16)
    return narrow if torch.isfinite(narrow).all() else latent
