"""Serve Stable Diffusion 1.x and 2.x: a CLIP text encoder, a UNet with epsilon, v or sample prediction, an
autoencoder."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import Checkpoint
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.families.clip_text import ClipText
from pentimento.diffusion.families.loading import DigestsLater, check_token_limits, load_schedulers, refuse_keys
from pentimento.diffusion.families.model import (
    Conditioning,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    PerSampleAdapters,
    PromptStates,
)
from pentimento.diffusion.families.unet import (
    FOREIGN_KEYS,
    FOREIGN_SWITCHES,
    UNetDenoiser,
    check_unet_texts,
    describe_unet_model,
)
from pentimento.diffusion.schedulers import DIFFUSION_SCHEDULERS, SchedulerConfig
from pentimento.diffusion.weights import load_components
from pentimento.domain.generation import Scheduler

# diffusers' pipelines of this family override these two settings.
_PIPELINE_OVERRIDES = {"steps_offset": 1, "clip_sample": False}
_OLD_SAMPLE_SIZE = 64


def load(checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> "StableDiffusion":
    """Return the loaded family adapter. Raises BadCheckpoint if this family does not support a configuration or weight
    file."""
    config = refuse_keys(checkpoint, "unet", (*FOREIGN_KEYS, "addition_embed_type"), FOREIGN_SWITCHES)
    return StableDiffusion(checkpoint, digests, device, dtype, least_sample_size=_least_sample_size(config))


def _least_sample_size(config: Mapping[str, Any]) -> int:
    """Return the least sample size: diffusers' pipelines of this family read a smaller one, written by a release before
    0.9, as 64. Files of Stable Diffusion 1 state 32 and generate 64."""
    version = re.match(r"(\d+)\.(\d+)\.", str(config.get("_diffusers_version", "")))
    return _OLD_SAMPLE_SIZE if version and tuple(map(int, version.groups())) < (0, 9) else 0


class StableDiffusion:
    """Adapt diffusers' modules of this family to the engine."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        digests: DigestsLater,
        device: torch.device,
        dtype: torch.dtype,
        *,
        least_sample_size: int = 0,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._schedulers = load_schedulers(checkpoint, DIFFUSION_SCHEDULERS, _PIPELINE_OVERRIDES)
        parts = load_components(checkpoint, device, dtype)
        check_token_limits(checkpoint, parts, ["tokenizer"])
        check_unet_texts(checkpoint, parts["unet"], parts["text_encoder"].config.hidden_size)
        self._text = ClipText(parts["tokenizer"], parts["text_encoder"], device, expands_inversions=True)
        self.denoiser = parts["unet"]
        self.adaptable = {"unet": self.denoiser, "text_encoder": parts["text_encoder"]}
        self._unet = UNetDenoiser(self.denoiser, dtype)
        vae = parts["vae"]
        self._autoencoder = Autoencoder(vae, LatentScale.of(vae.config), device, dtype)
        sees_mask = self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config, may_see_mask=True)
        self.info = describe_unet_model(
            "stable_diffusion",
            self.denoiser,
            self._autoencoder,
            self._schedulers,
            digests,
            sees_mask=sees_mask,
            least_sample_size=least_sample_size,
        )

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        """Return the configuration of one of the model's schedulers."""
        return self._schedulers[scheduler]

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Return the shape of a latent for an image of that size."""
        return self._autoencoder.latent_shape(width_px, height_px)

    def encode_prompt(self, prompt: str, *, negative: bool = False) -> PromptStates:
        """Return the prompt's text states from this family's encoders."""
        encoded = self._text.last_states(prompt)
        return PromptStates(Conditioning(encoded.states.to(self.dtype)), encoded.truncated)

    def record_texts(self, compiler: Callable[..., Any]) -> None:
        """Compile the prompt encoder with `compiler`."""
        self._text.record(compiler)

    def conditioning(self, prompt: PromptStates, width_px: int, height_px: int) -> Conditioning:
        """Return one row with all conditioning of this family."""
        return prompt.conditioning

    def project(self, conditioning: Conditioning, adapters: PerSampleAdapters | None = None) -> Conditioning:
        """Return the conditioning with keys and values of its text states."""
        return self._unet.project(conditioning, adapters)

    def forget_time_terms(self) -> None:
        """Drop the time terms computed with weights that have changed."""
        self._unet.forget_time_terms()

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        """Return the terms of a timestep (rows, widths)."""
        return self._unet.time_terms(timestep, row_count)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the network's prediction, shaped as the latents."""
        return self._unet.predict(inputs)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the encoding computed before any residual is needed."""
        return self._unet.encode(inputs)

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding unchanged: a UNet takes residuals at one point only."""
        return encoding

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows."""
        return self._unet.decode(inputs, encoding)

    def example_residuals(self, encoding: DenoiserEncoding) -> ControlResiduals | None:
        """Return zeros shaped as ControlNets' residuals."""
        return self._unet.example_residuals(encoding)

    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return the clean latent of pixels (1, 3, height, width) in -1..1."""
        return self._autoencoder.encode(pixels, generator)

    def condition(self, pixels: Tensor, row_count: int, generator: torch.Generator, *, unshifted: bool) -> Tensor:
        """Return the pixels, the only input of this family's ControlNets."""
        return pixels.to(self.device, self.dtype)

    @property
    def picture_decoder(self) -> torch.nn.Module:
        """Return the network of `decode_latent`."""
        return self._autoencoder.decoder

    def decode_latent(self, latent: Tensor) -> Tensor:
        """Return the pixels of a clean latent."""
        return self._autoencoder.decode(latent)
