"""Serve SDXL (Podell et al. 2023): two CLIP text encoders with concatenated states, and a UNet that also takes the
second one's pooled text and the image's size."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale, channel_statistics
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

# Original height and width, top and left of the crop, target height and width.
_SIZE_COUNT = 6


def load(
    checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype
) -> "StableDiffusionXl":
    """Return the loaded family adapter. Raises BadCheckpoint if this family does not support a configuration or weight
    file."""
    config = refuse_keys(checkpoint, "unet", FOREIGN_KEYS, FOREIGN_SWITCHES)
    if config.get("addition_embed_type") != "text_time":
        path = checkpoint.component_directory("unet") / "config.json"
        raise BadCheckpoint(
            f"{path}: addition_embed_type must be 'text_time', got {config.get('addition_embed_type')!r}"
        )
    if checkpoint.settings.get("requires_aesthetics_score", False):
        raise BadCheckpoint(f"{checkpoint.directory}: requires_aesthetics_score (a refiner) is not supported")
    return StableDiffusionXl(checkpoint, digests, device, dtype)


class StableDiffusionXl:
    """Adapt diffusers' modules of this family to the engine."""

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._zeros_for_empty = bool(checkpoint.settings.get("force_zeros_for_empty_prompt", True))
        self._schedulers = load_schedulers(checkpoint, DIFFUSION_SCHEDULERS)
        parts = load_components(checkpoint, device, dtype)
        check_token_limits(checkpoint, parts, ["tokenizer", "tokenizer_2"])
        made = sum(parts[name].config.hidden_size for name in ("text_encoder", "text_encoder_2"))
        check_unet_texts(checkpoint, parts["unet"], made)
        self._texts = (
            ClipText(parts["tokenizer"], parts["text_encoder"], device, expands_inversions=True),
            ClipText(parts["tokenizer_2"], parts["text_encoder_2"], device, expands_inversions=True),
        )
        self.denoiser = parts["unet"]
        self.adaptable = {name: parts[name] for name in ("unet", "text_encoder", "text_encoder_2")}
        self._unet = UNetDenoiser(self.denoiser, dtype)
        self._autoencoder = _autoencoder(parts["vae"], device, dtype)
        sees_mask = self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config, may_see_mask=True)
        _check_widths(checkpoint, parts)
        self.info = describe_unet_model(
            "stable_diffusion_xl", self.denoiser, self._autoencoder, self._schedulers, digests, sees_mask=sees_mask
        )

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        """Return the configuration of one of the model's schedulers."""
        return self._schedulers[scheduler]

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Return the shape of a latent for an image of that size."""
        return self._autoencoder.latent_shape(width_px, height_px)

    def encode_prompt(self, prompt: str, *, negative: bool = False) -> PromptStates:
        """Return the prompt's text states. diffusers distinguishes an absent negative prompt from an empty one; here an
        empty one counts as absent."""
        first, second = (text.penultimate_states(prompt, text.token_limit) for text in self._texts)
        assert second.pooled is not None
        states = torch.cat([first.states, second.states], dim=-1).to(self.dtype)
        conditioning = Conditioning(states, second.pooled.to(self.dtype))
        if negative and not prompt and self._zeros_for_empty:
            conditioning = Conditioning(torch.zeros_like(states), torch.zeros_like(second.pooled, dtype=self.dtype))
        return PromptStates(conditioning, first.truncated and second.truncated)

    def record_texts(self, compiler: Callable[..., Any]) -> None:
        """Compile the prompt encoders with `compiler`."""
        for text in self._texts:
            text.record(compiler)

    def conditioning(self, prompt: PromptStates, width_px: int, height_px: int) -> Conditioning:
        """Return one row with all conditioning of this family."""
        sizes = torch.tensor([[height_px, width_px, 0, 0, height_px, width_px]], dtype=self.dtype, device=self.device)
        return Conditioning(prompt.conditioning.states, prompt.conditioning.pooled, sizes)

    def project(self, conditioning: Conditioning, adapters: PerSampleAdapters | None = None) -> Conditioning:
        """Return the conditioning with keys and values of its text states."""
        return self._unet.project(conditioning, adapters)

    def forget_time_terms(self) -> None:
        """Drop the time terms computed with weights that have changed."""
        self._unet.forget_time_terms()

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        """Return None: the terms depend on the pooled text and the sizes, too."""
        return None

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the network's prediction, shaped as the latents."""
        return self._unet.predict(inputs, _added(inputs))

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the encoding computed before any residual is needed."""
        return self._unet.encode(inputs, _added(inputs))

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding unchanged: a UNet takes residuals at one point only."""
        return encoding

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows."""
        return self._unet.decode(inputs, encoding, _added(inputs))

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


def _added(inputs: DenoiserInput) -> dict[str, Tensor]:
    texts = inputs.conditioning
    assert texts.pooled is not None and texts.sizes is not None
    return {"text_embeds": texts.pooled, "time_ids": texts.sizes}


def _autoencoder(vae: Any, device: torch.device, dtype: torch.dtype) -> Autoencoder:
    if vae.config.force_upcast and dtype is not torch.float32:
        vae.float()  # its activations leave half precision's range
    scale = LatentScale.of(vae.config)
    if (statistics := channel_statistics(vae.config)) is not None:
        mean, deviation = (values.to(device, dtype) for values in statistics)
        scale = replace(scale, shift=mean, deviation=deviation)
    return Autoencoder(vae, scale, device, dtype)


def _check_widths(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
    """Raise BadCheckpoint for a UNet with another number of sizes (a refiner) or another width of pooled text."""
    unet, pooled = parts["unet"], parts["text_encoder_2"].config.projection_dim
    given = unet.config.addition_time_embed_dim * _SIZE_COUNT + pooled
    taken = unet.add_embedding.linear_1.in_features
    if given != taken:
        raise BadCheckpoint(
            f"{checkpoint.directory}: the UNet takes {taken} values of pooled text and sizes, there are {given}"
        )
