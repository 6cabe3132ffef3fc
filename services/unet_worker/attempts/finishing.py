"""From latents to encoded pictures, on a thread of its own: decoding and PNG work never hold up the event loop, nor the
next picture's steps."""

import hashlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pentimento.diffusion.engine.faults import is_out_of_memory, not_finite, out_of_memory
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import encode_pixels
from pentimento.domain.errors import Internal


@dataclass(frozen=True)
class FinishedPicture:
    """`png` is what a cache keeps, whatever the format of `image`; times on the monotonic clock, in seconds."""

    image: bytes = field(repr=False)
    digest: str
    png: bytes = field(repr=False)
    started_at: float
    decoded_at: float
    encoded_at: float


class Finisher:
    def __init__(self, model: DiffusionModel, preview_side_px: int, threads: int = 1) -> None:
        self._model = model
        self._preview_side_px = preview_side_px
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="finisher", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def finish(
        self, latent: Tensor, image_format: str, keep_png: bool, encoding_quality: int | None = None
    ) -> "Future[FinishedPicture]":
        """The picture of a final latent; Internal NON_FINITE_LATENT when it holds NaN or infinities, ResourceExhausted
        when the device has no memory to decode it."""
        return self._executor.submit(self._finish, latent, image_format, keep_png, encoding_quality)

    def preview(self, predicted_clean: Tensor) -> "Future[bytes]":
        """A small PNG of what the model now expects; empty when that is not finite."""
        return self._executor.submit(self._preview, predicted_clean)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    @torch.inference_mode()
    def _finish(
        self, latent: Tensor, image_format: str, keep_png: bool, encoding_quality: int | None
    ) -> FinishedPicture:
        started_at = time.monotonic()
        pixels = self._decode(latent)
        decoded_at = time.monotonic()
        try:
            image = encode_pixels(pixels, image_format, quality=encoding_quality)
            png = image if image_format == "png" or not keep_png else encode_pixels(pixels, "png")
        except ValueError:
            raise Internal("NON_FINITE_PIXELS", "the autoencoder produced values that are not finite") from None
        digest = f"sha256:{hashlib.sha256(image).hexdigest()}"
        return FinishedPicture(image, digest, png, started_at, decoded_at, time.monotonic())

    def _decode(self, latent: Tensor) -> Tensor:
        if not torch.isfinite(latent).all():
            raise not_finite()
        try:
            return (
                self._model.decode_latent(latent).float().cpu()
            )  # waits for the device: the seconds are the decoder's
        except (RuntimeError, MemoryError) as error:
            raise out_of_memory() if is_out_of_memory(error) else error from None

    @torch.inference_mode()
    def _preview(self, predicted_clean: Tensor) -> bytes:
        try:
            return encode_pixels(self._model.decode_latent(predicted_clean), "png", self._preview_side_px)
        except ValueError:
            return b""
