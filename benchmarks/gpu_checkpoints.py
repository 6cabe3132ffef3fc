"""Write checkpoints of served sizes with random weights, which diffusers' pipelines and ours both load."""

from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from benchmarks.gpu_networks import NetworkSize
from benchmarks.gpu_setup import GpuSetup
from lab.fixtures.checkpoints import kl_autoencoder, text_config, tokenizer

_BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
# SD 1.5's, and SDXL's except for its scale
WHOLE_AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "norm_num_groups": 32,
}
# CLIP's ViT-L, which both have, and OpenCLIP's ViT-bigG, SDXL's second
_FIRST_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_SECOND_TEXT = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
_WHOLE_TOKENS = 77


def saved_pipeline(setup: GpuSetup, size: NetworkSize, dtype: torch.dtype, folder: Path, *, whole: bool = False) -> Any:
    """Write a checkpoint into `folder` and return the saved pipeline, on the device.

    Text encoders and autoencoder are tiny, so that they favour no side, or with `whole` of the model's sizes.
    """
    whole = whole and not setup.tiny
    torch.manual_seed(0)
    with setup.device:
        unet = UNet2DConditionModel(**size.config, sample_size=size.side_px // 8)
        vae = autoencoder(size, whole=whole)
    parts: dict[str, Any] = {
        "vae": vae,
        "unet": unet,
        "scheduler": DDIMScheduler(beta_schedule="scaled_linear"),
        "tokenizer": _tokenizer(folder / "tokenizer", whole=whole),
    }
    first, second = _text_changes(size, whole=whole)
    if size.pooled_width:
        config = text_config(**second, projection_dim=size.pooled_width)
        pipeline = StableDiffusionXLPipeline(
            **parts,
            text_encoder=CLIPTextModel(text_config(**first)),
            text_encoder_2=CLIPTextModelWithProjection(config),
            tokenizer_2=_tokenizer(folder / "tokenizer_2", whole=whole),
            add_watermarker=False,
        )
    else:
        unguarded = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        pipeline = StableDiffusionPipeline(**parts, text_encoder=CLIPTextModel(text_config(**first)), **unguarded)
    pipeline.to(dtype=dtype)
    pipeline.save_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(setup.device)


def autoencoder(size: NetworkSize, *, whole: bool) -> Any:
    """Return the model's autoencoder if `whole` (for SDXL the kind that tolerates half precision), else a tiny one."""
    if not whole:
        return kl_autoencoder(block_out_channels=(8, 8, 8, 8), **_BLOCKS)
    scale = 0.13025 if size.pooled_width else 0.18215
    return kl_autoencoder(**WHOLE_AUTOENCODER, **_BLOCKS, scaling_factor=scale, force_upcast=False)


def _tokenizer(folder: Path, *, whole: bool) -> Any:
    words = tokenizer(folder)
    if whole:
        words.model_max_length = _WHOLE_TOKENS
    return words


def _text_changes(size: NetworkSize, *, whole: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return changes for the first text encoder and the second: together as wide as the network's input."""
    width = size.config["cross_attention_dim"]
    if whole:
        tokens = {"max_position_embeddings": _WHOLE_TOKENS}
        return {**_FIRST_TEXT, **tokens}, {**_SECOND_TEXT, **tokens}
    second = min(size.pooled_width, width // 2)
    return {"hidden_size": width - second}, {"hidden_size": second}
