"""Generate images from captions by the exported flow-matching pipeline: diffusers', with one seed per image."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from zoo.painting.pipeline import generate, load_quietly

NO_PADDING = 0  # tokens in the place of the missing T5 encoder


def load_flow_pipeline(folder: Path) -> StableDiffusion3Pipeline:
    return load_quietly(StableDiffusion3Pipeline, folder, text_encoder_3=None, tokenizer_3=None)


def generate_flow(
    pipeline: StableDiffusion3Pipeline,
    prompts: list[str],
    seeds: list[int],
    steps: int,
    scale: float,
    batch: int = 64,
    padding: int = NO_PADDING,
) -> Tensor:
    """Return pixels in 0..1 (n, 3, height, width)."""
    return generate(partial(pipeline, max_sequence_length=padding), prompts, seeds, steps, scale, batch)
