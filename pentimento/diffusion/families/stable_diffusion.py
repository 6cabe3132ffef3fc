"""Stable Diffusion 1.x and 2.x: a CLIP text encoder, a UNet of epsilon, v or sample prediction, and an autoencoder."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint, CheckpointDigests, read_json_object
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import Conditioning, DenoiserInput, ModelInfo, PromptStates
from pentimento.diffusion.schedulers import (
    SUPPORTED_SCHEDULERS,
    SchedulerConfig,
    UnsupportedConfig,
    read_scheduler_config,
    scheduler_config,
)
from pentimento.diffusion.weights import load_component
from pentimento.domain.generation import NoiseForm, Scheduler

# Sides are multiples of 8 in diffusers' pipelines of this family, whatever the autoencoder's factor.
_PIPELINE_SIZE_MULTIPLE = 8

# UNet settings of other families and conditionings; a checkpoint that sets one would be served wrongly.
_UNSET_UNET_KEYS = (
    "class_embed_type",
    "num_class_embeds",
    "addition_embed_type",
    "encoder_hid_dim_type",
    "time_cond_proj_dim",
)


def load(
    checkpoint: Checkpoint, digests: Callable[[], CheckpointDigests], device: torch.device, dtype: torch.dtype
) -> "StableDiffusion":
    """Raises BadCheckpoint when a configuration or weight file is not what this family serves."""
    _check_unet_config(checkpoint.component_directory("unet") / "config.json")
    return StableDiffusion(checkpoint, digests, device, dtype)


def _check_unet_config(path: Path) -> None:
    config = read_json_object(path)
    for key in _UNSET_UNET_KEYS:
        if config.get(key) is not None:
            raise BadCheckpoint(f"{path}: {key}={config[key]!r} is not supported")


class StableDiffusion:
    """The family's adapter around diffusers' modules."""

    def __init__(
        self, checkpoint: Checkpoint, digests: Callable[[], CheckpointDigests], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._tokenizer = load_component(checkpoint, "tokenizer", device, dtype)
        self._text_encoder = load_component(checkpoint, "text_encoder", device, dtype)
        self._unet = load_component(checkpoint, "unet", device, dtype)
        skip_signature_checks(self._unet)
        self._vae = load_component(checkpoint, "vae", device, dtype)
        self._vae_scale_factor = 2 ** (len(self._vae.config.block_out_channels) - 1)
        self._scheduler_configs = _scheduler_configs(checkpoint)
        self.info = self._describe(checkpoint, digests())

    def _describe(self, checkpoint: Checkpoint, digests: CheckpointDigests) -> ModelInfo:
        config = self._unet.config
        if config.in_channels != self._vae.config.latent_channels:
            raise BadCheckpoint(
                f"{checkpoint.directory}: the UNet takes {config.in_channels} channels, the autoencoder makes "
                f"{self._vae.config.latent_channels} (inpainting and other conditioned checkpoints are not supported)"
            )
        sides = config.sample_size if isinstance(config.sample_size, list | tuple) else [config.sample_size] * 2
        schedulers = tuple(self._scheduler_configs)
        own = self._scheduler_configs[schedulers[0]]
        return ModelInfo(
            family="stable_diffusion",
            model_digest=digests.model,
            vae_digest=digests.components["vae"],
            scheduler_digest=digests.components["scheduler"],
            prediction_type=own.prediction_type.value,
            noise_form=NoiseForm.VARIANCE_PRESERVING,
            default_width_px=sides[1] * self._vae_scale_factor,
            default_height_px=sides[0] * self._vae_scale_factor,
            size_multiple_px=math.lcm(_PIPELINE_SIZE_MULTIPLE, self._vae_scale_factor),
            schedulers=schedulers,
            train_step_count=own.num_train_timesteps,
        )

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        return self._scheduler_configs[scheduler]

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        factor = self._vae_scale_factor
        return (1, self._unet.config.in_channels, height_px // factor, width_px // factor)

    def encode_prompt(self, prompt: str, *, negative: bool = False) -> PromptStates:
        limit = self._tokenizer.model_max_length
        token_count = len(self._tokenizer(prompt, verbose=False).input_ids)
        tokens = self._tokenizer(prompt, padding="max_length", max_length=limit, truncation=True, return_tensors="pt")
        masked = getattr(self._text_encoder.config, "use_attention_mask", False)
        mask = tokens.attention_mask.to(self.device) if masked else None
        states = self._text_encoder(tokens.input_ids.to(self.device), attention_mask=mask)[0]
        return PromptStates(Conditioning(states.to(self.dtype)), truncated=token_count > limit)

    def conditioning(self, prompt: PromptStates, width_px: int, height_px: int) -> Conditioning:
        return prompt.conditioning

    def predict(self, inputs: DenoiserInput) -> Tensor:
        residuals = inputs.residuals
        prediction: Tensor = self._unet(
            inputs.latents,
            inputs.timesteps,
            encoder_hidden_states=inputs.conditioning.states,
            down_block_additional_residuals=residuals.down_block_residuals if residuals else None,
            mid_block_additional_residual=residuals.mid_block_residual if residuals else None,
            return_dict=False,
        )[0]
        return prediction

    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        encoded = self._vae.encode(pixels.to(self.device, self.dtype))
        latent = encoded.latent_dist.sample(generator) if hasattr(encoded, "latent_dist") else encoded.latents
        scaled: Tensor = self._vae.config.scaling_factor * latent
        return scaled

    def decode_latent(self, latent: Tensor) -> Tensor:
        pixels: Tensor = self._vae.decode(latent.to(self.dtype) / self._vae.config.scaling_factor, return_dict=False)[0]
        return pixels


def _scheduler_configs(checkpoint: Checkpoint) -> dict[Scheduler, SchedulerConfig]:
    """The checkpoint's own scheduler first. diffusers' pipelines of this family override two settings; so do we."""
    path = checkpoint.component_directory("scheduler") / "scheduler_config.json"
    try:
        own, stored = read_scheduler_config(read_json_object(path))
        stored |= {"steps_offset": 1, "clip_sample": False}
        order = sorted(SUPPORTED_SCHEDULERS, key=lambda scheduler: scheduler is not own)
        return {scheduler: scheduler_config(scheduler, stored) for scheduler in order}
    except UnsupportedConfig as error:
        raise BadCheckpoint(f"{path}: {error}") from None
