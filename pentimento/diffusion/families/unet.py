"""What the families around a UNet2DConditionModel have in common."""

import math
from typing import Any

from torch import Tensor

from pentimento.diffusion.families.adapters import adapted
from pentimento.diffusion.families.autoencoder import Autoencoder
from pentimento.diffusion.families.loading import DigestsLater, default_size_px
from pentimento.diffusion.families.model import DenoiserInput, ModelInfo
from pentimento.diffusion.schedulers import DiffusionConfig, SchedulerConfig
from pentimento.domain.generation import NoiseForm, Scheduler

# Settings of other families and conditionings; a checkpoint that sets one would be served wrongly.
FOREIGN_KEYS = ("class_embed_type", "num_class_embeds", "encoder_hid_dim_type", "time_cond_proj_dim")

# Sides are multiples of 8 in diffusers' pipelines of these families, whatever the autoencoder's factor.
_PIPELINE_SIZE_MULTIPLE = 8


def predict_with_unet(unet: Any, inputs: DenoiserInput, added: dict[str, Tensor] | None = None) -> Tensor:
    """The prediction, shaped as the latents; `added` is what SDXL conditions on besides the text states."""
    residuals = inputs.residuals
    with adapted(unet, inputs.adapters):
        prediction: Tensor = unet(
            inputs.latents,
            inputs.timesteps,
            encoder_hidden_states=inputs.conditioning.states,
            added_cond_kwargs=added,
            down_block_additional_residuals=(residuals.down_block_residuals or None) if residuals else None,
            mid_block_additional_residual=residuals.mid_block_residual if residuals else None,
            return_dict=False,
        )[0]
    return prediction


def describe_unet_model(
    family: str,
    unet: Any,
    autoencoder: Autoencoder,
    schedulers: dict[Scheduler, SchedulerConfig],
    later: DigestsLater,
) -> ModelInfo:
    """Waits for the digests."""
    own = next(iter(schedulers.values()))
    assert isinstance(own, DiffusionConfig)
    digests = later()
    width, height = default_size_px(unet.config.sample_size, autoencoder.factor)
    return ModelInfo(
        family=family,
        model_digest=digests.model,
        vae_digest=digests.components["vae"],
        scheduler_digest=digests.components["scheduler"],
        prediction_type=own.prediction_type.value,
        noise_form=NoiseForm.VARIANCE_PRESERVING,
        default_width_px=width,
        default_height_px=height,
        size_multiple_px=math.lcm(_PIPELINE_SIZE_MULTIPLE, autoencoder.factor),
        schedulers=tuple(schedulers),
        train_step_count=own.num_train_timesteps,
    )
