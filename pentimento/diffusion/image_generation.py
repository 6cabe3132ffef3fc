"""Generate batches of images through the engine's loop, from any start, with their captured latents.

`pentimento profile` uses it to measure the effect of reuse, and of late LoRAs, on quality.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine import (
    BatchLimits,
    Denoiser,
    DenoisingListener,
    EngineObserver,
    EngineSettings,
    FinishedDenoising,
    StepLoop,
)
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import encode_pixels
from pentimento.domain.errors import PentimentoError


@dataclass(frozen=True)
class StudiedImage:
    """Hold an image as a client receives it (PNG), and by step the latents captured for its request, each
    (1, channels, height, width) at unit variance; `final` is the clean latent that the image was decoded from."""

    png: bytes = field(repr=False)
    latents: Mapping[int, Tensor] = field(repr=False)
    final: Tensor = field(repr=False)


@dataclass
class HeardRequest(DenoisingListener):
    """Collect the latents and the outcome of one request."""

    latents: dict[int, Tensor] = field(default_factory=dict)
    denoising: FinishedDenoising | None = None
    error: PentimentoError | None = None

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        self.latents[step] = latent

    def finished(self, denoising: FinishedDenoising) -> None:
        self.denoising = denoising

    def failed(self, error: PentimentoError) -> None:
        self.error = error


def study_loop(
    model: DiffusionModel, denoiser: Denoiser, max_batch: int, observer: EngineObserver | None = None
) -> StepLoop:
    """Return a loop for measurements in one thread."""
    limits, settings = BatchLimits(max_batch, None, time.perf_counter), EngineSettings(max_batch=max_batch)
    return StepLoop(model, denoiser, limits, settings, observer or EngineObserver(), time.perf_counter)


@torch.inference_mode()
def generate_batch(loop: StepLoop, requests: Sequence[DenoisingRequest]) -> list[HeardRequest]:
    """Run simultaneous requests to their ends, and return their outcomes in order."""
    heard = [HeardRequest() for _ in requests]
    for request, listener in zip(requests, heard, strict=True):
        loop.submit(request, listener)
    while loop.tick():
        pass
    return heard


class BatchGenerator:
    """Generate images with one model, up to `max_batch` requests in a step."""

    def __init__(self, model: DiffusionModel, denoiser: Denoiser, max_batch: int) -> None:
        self.model = model
        self.max_batch = max_batch
        self._loop = study_loop(model, denoiser, max_batch)

    def generate(self, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
        """Yield the requests' images in order. Raises the error of a failed request. Restores the model's base weights
        at the end."""
        try:
            for start in range(0, len(requests), self.max_batch):
                yield from self._generate_batch(requests[start : start + self.max_batch])
        finally:
            self._loop.restore_weights()

    @torch.inference_mode()
    def _generate_batch(self, requests: Sequence[DenoisingRequest]) -> list[StudiedImage]:
        return [self._image(heard) for heard in generate_batch(self._loop, requests)]

    def _image(self, heard: HeardRequest) -> StudiedImage:
        if heard.error is not None:
            raise heard.error
        assert heard.denoising is not None
        latent = heard.denoising.latent
        return StudiedImage(encode_pixels(self.model.decode_latent(latent), "png"), heard.latents, latent)
