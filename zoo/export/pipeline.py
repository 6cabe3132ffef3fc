"""Write a denoiser as a StableDiffusionPipeline directory that stock diffusers loads, with its foundations."""

from __future__ import annotations

from pathlib import Path

import diffusers
from transformers import CLIPModel

from zoo.drawing.tokenizer import load_tokenizer
from zoo.export.directories import (
    save_diffusers_model,
    save_half,
    save_tokenizer,
    save_transformers_config,
    text_tensors,
    write_json,
)
from zoo.train.autoencoder import make_autoencoder
from zoo.train.denoiser import make_heavy, make_light, make_scheduler
from zoo.train.dual_encoder import TowersAndHeads
from zoo.train.loop import load_trained

MAKERS = {"heavy": make_heavy, "light": make_light}
# without safety checker and feature extractor
MODEL_INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": diffusers.__version__,
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderTiny"],
}


def export_pipeline(work: Path, part: str, folder: Path) -> None:
    """Write `part` (heavy or light) from its last checkpoint in the work folder."""
    tokenizer = load_tokenizer(work / "tokenizer")
    towers = load_trained(TowersAndHeads(tokenizer), work / "dual-encoder")
    unet = load_trained(MAKERS[part](), work / part)
    save_diffusers_model(unet, folder / "unet")
    save_diffusers_model(load_trained(make_autoencoder(), work / "autoencoder"), folder / "vae")
    _save_text_encoder(towers.clip, folder / "text_encoder")
    save_tokenizer(tokenizer, folder / "tokenizer")
    make_scheduler().save_pretrained(folder / "scheduler")
    write_json(folder / "model_index.json", MODEL_INDEX)


def _save_text_encoder(clip: CLIPModel, folder: Path) -> None:
    save_transformers_config(clip.config.text_config, "CLIPTextModel", folder)
    save_half(text_tensors(clip), folder / "model.safetensors")
