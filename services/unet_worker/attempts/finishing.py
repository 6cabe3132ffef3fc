"""Decode and encode images from latents, on separate threads: neither the event loop nor the next request's steps wait,
and the next image is decoded while one is encoded."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from pentimento.diffusion.engine.probe import is_out_of_memory, not_finite, out_of_memory
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import encode_bytes, encode_pixels, filtered_rows, pixel_bytes, png_of_rows
from pentimento.domain.errors import Internal

# Encoding takes longer than decoding on a GPU.
MOST_ENCODERS = 4
# Longest side of a preview.
PREVIEW_SIDE_PX = 128


@dataclass(frozen=True)
class FinishedImage:
    """Hold an encoded image; a cache stores `png`, regardless of `image`'s format. Times: monotonic clock, seconds."""

    image: bytes = field(repr=False)
    digest: str
    png: bytes = field(repr=False)
    started_at: float
    decoded_at: float
    encoded_at: float


class Finisher:
    def __init__(self, model: DiffusionModel, threads: int = 1) -> None:
        self._model = model
        self._threads = threads
        self._decoding = self._pool(1, "decoder")
        self._encoding = self._pool(min(len(os.sched_getaffinity(0)), MOST_ENCODERS), "encoder")

    async def finish(
        self, latent: Tensor, image_format: str, keep_png: bool, encoding_quality: int | None = None
    ) -> FinishedImage:
        """Return the image of a final latent. Raises Internal NON_FINITE_LATENT if it holds NaN or infinities,
        ResourceExhausted if the device has no memory to decode it."""
        loop = asyncio.get_running_loop()
        form = (image_format, keep_png, encoding_quality)
        encode = await loop.run_in_executor(self._decoding, self._decoded, latent, *form)
        return await loop.run_in_executor(self._encoding, encode)

    def preview(self, predicted_clean: Tensor) -> "Future[bytes]":
        """Return a small PNG of the image that the model predicts; empty if that is not finite."""
        return self._decoding.submit(self._preview, predicted_clean)

    def close(self) -> None:
        for pool in (self._decoding, self._encoding):
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self, size: int, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(size, name, initializer=torch.set_num_threads, initargs=(self._threads,))

    @torch.inference_mode()
    def _decoded(
        self, latent: Tensor, image_format: str, keep_png: bool, quality: int | None
    ) -> Callable[[], FinishedImage]:
        """Decode a latent, and return the function that encodes its image."""
        started_at = time.monotonic()
        if not torch.isfinite(latent).all():
            raise not_finite()
        try:
            pixels, rows = _fetched(self._model.decode_latent(latent), image_format, keep_png)
        except (RuntimeError, MemoryError) as error:
            raise out_of_memory() if is_out_of_memory(error) else error from None
        return partial(_encoded, pixels, rows, image_format, quality, started_at, time.monotonic())

    @torch.inference_mode()
    def _preview(self, predicted_clean: Tensor) -> bytes:
        try:
            return encode_pixels(self._model.decode_latent(predicted_clean), "png", PREVIEW_SIDE_PX)
        except ValueError:
            return b""


def _fetched(pixels: Tensor, image_format: str, keep_png: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return an image in host memory: its bytes (height, width, 3), and its rows in PNG's form; None for a form that
    was not requested. Waits for the device: the seconds count as the decoder's."""
    try:
        found = pixel_bytes(pixels)
    except ValueError:
        raise Internal("NON_FINITE_PIXELS", "the autoencoder produced values that are not finite") from None
    is_png = image_format == "png"
    rows = filtered_rows(found).cpu() if is_png or keep_png else None
    return None if is_png else found.cpu(), rows


def _encoded(
    pixels: Tensor | None,
    rows: Tensor | None,
    image_format: str,
    quality: int | None,
    started_at: float,
    decoded_at: float,
) -> FinishedImage:
    png = b"" if rows is None else png_of_rows(rows)
    image = png if pixels is None else encode_bytes(pixels, image_format, quality=quality)
    digest = f"sha256:{hashlib.sha256(image).hexdigest()}"
    return FinishedImage(image, digest, png or image, started_at, decoded_at, time.monotonic())
