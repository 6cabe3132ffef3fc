"""What a family offers to the step engine: prepare conditioning, predict, and both ways through the autoencoder."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pentimento.diffusion.schedulers import SchedulerConfig
from pentimento.domain.generation import NoiseForm, Scheduler


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is and takes; sizes in pixels. `schedulers` begins with the checkpoint's own."""

    family: str
    model_digest: str
    vae_digest: str
    scheduler_digest: str
    prediction_type: str
    noise_form: NoiseForm
    default_width_px: int
    default_height_px: int
    size_multiple_px: int
    schedulers: tuple[Scheduler, ...]
    train_step_count: int


@dataclass(frozen=True)
class PromptStates:
    """A prompt as the denoiser sees it: (1, tokens, width); `truncated` when the prompt was longer than that."""

    states: Tensor
    truncated: bool


@dataclass(frozen=True)
class ControlResiduals:
    """What ControlNets add to the skip connections, shallow to deep, and to the mid block; rows as in the latents."""

    down_block_residuals: tuple[Tensor, ...]
    mid_block_residual: Tensor


@dataclass(frozen=True)
class DenoiserInput:
    """One forward pass. Rows may belong to different pictures, each with its own timestep: latents
    (rows, channels, height, width) scaled by their sampler, timesteps (rows,) or one for all, text_states
    (rows, tokens, width)."""

    latents: Tensor
    timesteps: Tensor
    text_states: Tensor
    residuals: ControlResiduals | None = None


class DiffusionModel(Protocol):
    """A loaded model. Only the engine's thread calls it, but for `decode_latent`, which one other thread may."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig: ...

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]: ...

    def encode_prompt(self, prompt: str) -> PromptStates: ...

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """The network's prediction, shaped as the latents."""
        ...

    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Pixels (1, 3, height, width) in -1..1 to a clean latent; a stochastic encoder draws from `generator`."""
        ...

    def decode_latent(self, latent: Tensor) -> Tensor:
        """A clean latent to pixels (1, 3, height, width), about -1..1."""
        ...
