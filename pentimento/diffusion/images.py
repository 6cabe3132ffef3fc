"""Pixels between tensors and encoded bytes. Formats are allow-listed; dimensions are checked before decoding."""

import io

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

IMAGE_FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
_MAX_DECODED_PIXELS = 4096 * 4096


def encode_pixels(pixels: Tensor, image_format: str, max_side_px: int | None = None) -> bytes:
    """Pixels (1, 3, height, width) in -1..1 as one of IMAGE_FORMATS, shrunk to `max_side_px` if that is given.

    Raises ValueError when a pixel is not finite.
    """
    if not torch.isfinite(pixels).all():
        raise ValueError("pixels that are not finite")
    image = Image.fromarray(_to_bytes(pixels))
    if max_side_px is not None:
        image.thumbnail((max_side_px, max_side_px))
    buffer = io.BytesIO()
    image.save(buffer, IMAGE_FORMATS[image_format])
    return buffer.getvalue()


def _to_bytes(pixels: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """As diffusers' VaeImageProcessor rounds."""
    unit = (pixels[0].float() * 0.5 + 0.5).clamp(0, 1)
    return (unit.permute(1, 2, 0).cpu().numpy() * 255).round().astype(np.uint8)


def decode_pixels(data: bytes, width_px: int, height_px: int) -> Tensor:
    """An encoded image as pixels (1, 3, height, width) in -1..1, resized (Lanczos) where its size is another.

    Raises ValueError when the bytes are no PNG, JPEG or WebP, or would decode to more than 4096 x 4096 pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=list(IMAGE_FORMATS.values())) as image:
            if image.width * image.height > _MAX_DECODED_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, at most {_MAX_DECODED_PIXELS} are taken")
            picture = image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError("not a readable PNG, JPEG or WebP image") from None
    if picture.size != (width_px, height_px):
        picture = picture.resize((width_px, height_px), Image.Resampling.LANCZOS)
    unit = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255.0)
    return (2.0 * unit - 1.0).permute(2, 0, 1).unsqueeze(0).contiguous()
