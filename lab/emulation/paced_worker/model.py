"""A model that sleeps for the times of a pace. Its predictions depend only on latents and residuals, so that an image
shows the step of each residual."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lab.emulation.pace import DevicePace, PassTimes
from pentimento.diffusion.families.model import (
    Conditioning,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    DiffusionModel,
    LoadedModelInfo,
    PromptStates,
)
from pentimento.diffusion.schedulers import DIFFUSION_SCHEDULERS, DiffusionConfig, SchedulerConfig
from pentimento.domain.generation import NoiseForm, Scheduler

TRAIN_STEPS = 1000
ADAPTED_LAYER = "adapted"
# Images are small: encoding large ones would take this machine's time, not the device's.
PICTURE_SIDE_PX = 64


class PacedModel(DiffusionModel):
    """Sleep for the times of a pace, on the CPU, where it computes next to nothing."""

    def __init__(self, pace: DevicePace, dtype: torch.dtype) -> None:
        self.pace = pace
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.denoiser: nn.Module = nn.Sequential()
        # the LoRAs' target
        self._adapted = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self._adapted.weight)
        self.denoiser.add_module(ADAPTED_LAYER, self._adapted.to(dtype))
        self.picture_decoder: nn.Module = nn.Identity()
        self.adaptable = {"unet": self.denoiser}
        self.info = _info(pace)

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        """Return the defaults of one of the schedulers."""
        return DiffusionConfig(scheduler)

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Return the shape of a latent."""
        channels, height, width = self.pace.latent_dims(width_px, height_px)
        return (1, channels, height, width)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        """Return zeros for every prompt."""
        pace = self.pace
        states = torch.zeros(1, pace.text_tokens, pace.text_width, dtype=self.dtype)
        pooled = torch.zeros(1, pace.pooled_width, dtype=self.dtype) if pace.pooled_width else None
        return PromptStates(Conditioning(states, pooled), False)

    def record_texts(self, compiler: Callable[..., Any]) -> None:
        """Do nothing: no text is computed."""

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        """Return one row, of SDXL with its sizes."""
        given = prompt.conditioning
        if given.pooled is None:
            return given
        sizes = torch.tensor([[height_px, width_px, 0, 0, height_px, width_px]], dtype=self.dtype)
        return Conditioning(given.states, given.pooled, sizes)

    def forget_time_terms(self) -> None:
        """Take as long as changing the weights does: it is called after each change, and nothing is kept."""
        time.sleep(self.pace.patch_s)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Take as long as both halves."""
        with self._taking(inputs, self.pace.encode, self.pace.decode):
            return self._prediction(inputs.latents, inputs.residuals)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Take as long as the first half; return the latents."""
        with self._taking(inputs, self.pace.encode):
            return DenoiserEncoding((inputs.latents.clone(),))

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Take as long as the second half, or as both where there is no encoding."""
        if not encoding.tensors:
            return self.predict(inputs)
        with self._taking(inputs, self.pace.decode):
            return self._prediction(encoding.tensors[0], inputs.residuals)

    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return a latent of zeros."""
        return torch.zeros(self.latent_shape(pixels.shape[3], pixels.shape[2]), dtype=self.dtype)

    def decode_latent(self, latent: Tensor) -> Tensor:
        """Take as long as the autoencoder; return a small image of one shade."""
        time.sleep(self.pace.picture_s)
        shade = torch.tanh(latent.float().mean())
        return shade.expand(1, 3, PICTURE_SIDE_PX, PICTURE_SIDE_PX).contiguous()

    @contextmanager
    def _taking(self, inputs: DenoiserInput, *passes: PassTimes) -> Iterator[None]:
        """Take as long as these passes over all rows; what the block takes of this machine is within them."""
        began_s = time.monotonic()
        yield
        seconds = sum(one.of(inputs.latents.shape[0]) for one in passes)
        seconds *= 1.0 if inputs.adapters is None else 1.0 + self.pace.beside_share
        time.sleep(max(began_s + seconds - time.monotonic(), 0.0))

    def _prediction(self, latents: Tensor, residuals: ControlResiduals | None) -> Tensor:
        """Small enough for a latent to stay finite; moved by the residuals' stamps (rows, 1, 1, 1) and the LoRAs."""
        prediction = latents * 0.1 + self._adapted.weight.detach() * 0.01
        for stamp in residuals.tensors if residuals is not None else ():
            prediction += stamp * 0.01
        return prediction


def _info(pace: DevicePace) -> LoadedModelInfo:
    """Its digests are those of no real model."""
    return LoadedModelInfo(
        family=pace.family,
        model_digest=_digest("model", pace),
        vae_digest=_digest("vae", pace),
        scheduler_digest=_digest("scheduler", pace),
        prediction_type="epsilon",
        noise_form=NoiseForm.VARIANCE_PRESERVING,
        default_width_px=pace.width_px,
        default_height_px=pace.height_px,
        size_multiple_px=pace.size_multiple_px,
        schedulers=DIFFUSION_SCHEDULERS,
        train_step_count=TRAIN_STEPS,
    )


def _digest(part: str, pace: DevicePace) -> str:
    return f"sha256:{hashlib.sha256(f'paced {part} {pace}'.encode()).hexdigest()}"
