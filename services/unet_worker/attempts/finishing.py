"""Decode and encode images from latents, on separate threads: neither the event loop nor the next request's steps wait,
and the next image is decoded while one is encoded."""

import asyncio
import hashlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pentimento.diffusion.engine.faults import is_out_of_memory, not_finite, out_of_memory
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import encode_bytes, encode_pixels, pixel_bytes
from pentimento.diffusion.png_rows import filtered_rows, png_of_rows
from pentimento.domain.errors import Internal

# Encoding takes longer than decoding on a GPU.
MOST_ENCODERS = 4


@dataclass(frozen=True)
class FinishedPicture:
    """Hold an encoded image; a cache stores `png`, regardless of `image`'s format. Times: monotonic clock, seconds."""

    image: bytes = field(repr=False)
    digest: str
    png: bytes = field(repr=False)
    started_at: float
    decoded_at: float
    encoded_at: float


@dataclass(frozen=True)
class _Decoded:
    """Hold an image in host memory: its bytes (height, width, 3), and its rows in PNG's form; None for a form that was
    not requested."""

    pixels: Tensor | None
    rows: Tensor | None
    started_at: float
    decoded_at: float


class Finisher:
    def __init__(self, model: DiffusionModel, preview_side_px: int, threads: int = 1) -> None:
        self._model = model
        self._preview_side_px = preview_side_px
        self._threads = threads
        self._decoding = self._pool(1, "decoder")
        self._encoding = self._pool(min(len(os.sched_getaffinity(0)), MOST_ENCODERS), "encoder")

    async def finish(
        self, latent: Tensor, image_format: str, keep_png: bool, encoding_quality: int | None = None
    ) -> FinishedPicture:
        """Return the image of a final latent. Raises Internal NON_FINITE_LATENT if it holds NaN or infinities,
        ResourceExhausted if the device has no memory to decode it."""
        loop = asyncio.get_running_loop()
        decoded = await loop.run_in_executor(self._decoding, self._decoded, latent, image_format, keep_png)
        return await loop.run_in_executor(self._encoding, _encoded, decoded, image_format, encoding_quality)

    def preview(self, predicted_clean: Tensor) -> "Future[bytes]":
        """Return a small PNG of the image that the model predicts; empty if that is not finite."""
        return self._decoding.submit(self._preview, predicted_clean)

    def close(self) -> None:
        for pool in (self._decoding, self._encoding):
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self, size: int, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(size, name, initializer=torch.set_num_threads, initargs=(self._threads,))

    @torch.inference_mode()
    def _decoded(self, latent: Tensor, image_format: str, keep_png: bool) -> _Decoded:
        started_at = time.monotonic()
        if not torch.isfinite(latent).all():
            raise not_finite()
        try:
            return _fetched(self._model.decode_latent(latent), image_format, keep_png, started_at)
        except (RuntimeError, MemoryError) as error:
            raise out_of_memory() if is_out_of_memory(error) else error from None

    @torch.inference_mode()
    def _preview(self, predicted_clean: Tensor) -> bytes:
        try:
            return encode_pixels(self._model.decode_latent(predicted_clean), "png", self._preview_side_px)
        except ValueError:
            return b""


def _fetched(pixels: Tensor, image_format: str, keep_png: bool, started_at: float) -> _Decoded:
    """Copy pixels from the device and wait for it: the seconds count as the decoder's."""
    try:
        found = pixel_bytes(pixels)
    except ValueError:
        raise Internal("NON_FINITE_PIXELS", "the autoencoder produced values that are not finite") from None
    is_png = image_format == "png"
    rows = filtered_rows(found).cpu() if is_png or keep_png else None
    return _Decoded(None if is_png else found.cpu(), rows, started_at, time.monotonic())


def _encoded(decoded: _Decoded, image_format: str, quality: int | None) -> FinishedPicture:
    png = b"" if decoded.rows is None else png_of_rows(decoded.rows)
    image = png if decoded.pixels is None else encode_bytes(decoded.pixels, image_format, quality=quality)
    digest = f"sha256:{hashlib.sha256(image).hexdigest()}"
    return FinishedPicture(image, digest, png or image, decoded.started_at, decoded.decoded_at, time.monotonic())
