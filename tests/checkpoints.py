"""Tiny checkpoints with random weights, in the form that diffusers itself writes: quick to make, quick to run."""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderTiny, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

TOKENS = 16
WIDTH = 16
SIDE_PX = 32


def write_checkpoint(directory: Path, *, vae: str = "tiny", half: bool = False, **scheduler: Any) -> Path:
    """A StableDiffusionPipeline of 32x32 pixels; `vae` is "tiny" or "kl", the rest goes to its DDIM configuration."""
    torch.manual_seed(0)
    autoencoder = _tiny_autoencoder() if vae == "tiny" else _kl_autoencoder()
    pipeline = StableDiffusionPipeline(
        vae=autoencoder,
        text_encoder=CLIPTextModel(_text_config()).eval(),
        tokenizer=_tokenizer(directory / "tokenizer"),
        unet=_unet(autoencoder.config.latent_channels),
        scheduler=DDIMScheduler(**{"clip_sample": False, "steps_offset": 1, **scheduler}),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    if half:
        pipeline.to(dtype=torch.float16)
    pipeline.save_pretrained(directory)
    return directory


def _text_config() -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=514,
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TOKENS,
        bos_token_id=512,
        eos_token_id=513,
        pad_token_id=513,
    )


def _tokenizer(directory: Path) -> CLIPTokenizer:
    """Byte-level, without merges."""
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(directory, model_max_length=TOKENS)


def _unet(channels: int) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=SIDE_PX // 4,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
        norm_num_groups=4,
    ).eval()


def _tiny_autoencoder() -> AutoencoderTiny:
    return AutoencoderTiny(
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        num_encoder_blocks=(1, 1, 1),
        num_decoder_blocks=(1, 1, 1),
    ).eval()


def _kl_autoencoder() -> AutoencoderKL:
    return AutoencoderKL(
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=4,
    ).eval()
