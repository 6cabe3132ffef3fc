"""Write the flow-matching transformer as a directory for stock diffusers, without T5, which Stable Diffusion 3 allows.

    pipeline = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    pipeline("a red circle", max_sequence_length=0)

A longer sequence, such as the default of 256, adds zero tokens in T5's place: the transformer is trained to tolerate
them, but they take most of the time. Both text encoders are the text tower, the other pipelines' file, with the
projection.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import diffusers
from transformers import CLIPModel

from zoo.drawing.tokenizer import load_tokenizer
from zoo.export.directories import (
    save_diffusers_model,
    save_shards,
    save_tokenizer,
    save_transformers_config,
    text_tensors,
    write_json,
)
from zoo.train.autoencoder import make_autoencoder
from zoo.train.dual_encoder import TowersAndHeads
from zoo.train.flow import make_flow, make_flow_scheduler
from zoo.train.loop import load_trained

PROJECTION = "text_projection.weight"
MODEL_INDEX = {
    "_class_name": "StableDiffusion3Pipeline",
    "_diffusers_version": diffusers.__version__,
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "max_sequence_length": 0,
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_3": [None, None],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "tokenizer_3": [None, None],
    "transformer": ["diffusers", "SD3Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderTiny"],
}


def export_flow(work: Path, folder: Path) -> None:
    """Write the `flow-refined` part from its last checkpoint in the work folder, with its foundations."""
    tokenizer = load_tokenizer(work / "tokenizer")
    towers = load_trained(TowersAndHeads(tokenizer), work / "dual-encoder")
    save_diffusers_model(load_trained(make_flow(), work / "flow-refined"), folder / "transformer")
    save_diffusers_model(load_trained(make_autoencoder(), work / "autoencoder"), folder / "vae")
    make_flow_scheduler().save_pretrained(folder / "scheduler")
    _save_text_encoder(towers.clip, folder / "text_encoder")
    save_tokenizer(tokenizer, folder / "tokenizer")
    for name in ("text_encoder", "tokenizer"):
        shutil.copytree(folder / name, folder / f"{name}_2", dirs_exist_ok=True)
    write_json(folder / "model_index.json", MODEL_INDEX)


def _save_text_encoder(clip: CLIPModel, folder: Path) -> None:
    save_transformers_config(clip.config.text_config, "CLIPTextModelWithProjection", folder)
    save_shards([text_tensors(clip), {PROJECTION: clip.state_dict()[PROJECTION]}], folder)
