"""Checkpoints of Stable Diffusion 1.5's size with random weights: what a step of a real model costs, without one."""

from pathlib import Path
from typing import Any

import torch
from diffusers import ControlNetModel, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextModel

from pentimento.testing.checkpoints import kl_autoencoder, saved_controlnet, text_config, tokenizer

# Of the pictures that they are for: a quarter of the real one's work a step.
FULL_SIDE_PX = 256
_PIXELS_PER_LATENT = 8
_NETWORK: dict[str, Any] = {
    "block_out_channels": (320, 640, 1280, 1280),
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}


def full_size_unet(side_px: int = FULL_SIDE_PX) -> UNet2DConditionModel:
    """Return Stable Diffusion 1.5's UNet for square pictures, with random weights."""
    return UNet2DConditionModel(**_NETWORK, sample_size=side_px // _PIXELS_PER_LATENT).eval()


def write_full_size_checkpoint(directory: Path, side_px: int = FULL_SIDE_PX) -> Path:
    """Write a StableDiffusionPipeline of square pictures: the UNet is Stable Diffusion 1.5's (3.4 GB), text encoder and
    autoencoder are tiny."""
    torch.manual_seed(0)
    pipeline = StableDiffusionPipeline(
        vae=kl_autoencoder(
            block_out_channels=(8, 8, 8, 8),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
        ),
        text_encoder=CLIPTextModel(text_config(hidden_size=768, num_attention_heads=8)).eval(),
        tokenizer=tokenizer(directory / "tokenizer"),
        unet=full_size_unet(side_px),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(directory)
    return directory


def write_full_size_controlnet(directory: Path) -> Path:
    """Write its ControlNet (1.4 GB)."""
    torch.manual_seed(1)
    network = ControlNetModel(**_NETWORK)
    layers = [*network.controlnet_down_blocks, network.controlnet_mid_block, network.controlnet_cond_embedding.conv_out]
    return saved_controlnet(network, layers, directory, std=0.003)
