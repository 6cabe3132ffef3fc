"""Pictures from captions by the exported flow-matching pipeline: diffusers' own, with one seed per picture."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from diffusers import StableDiffusion3Pipeline
from diffusers.utils import logging
from torch import Tensor

from zoo.training import device

NO_PADDING = 0  # tokens in the place of the T5 encoder that the pipeline has not


def load_flow_pipeline(folder: Path) -> StableDiffusion3Pipeline:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device())


def paint_flow(
    pipeline: StableDiffusion3Pipeline,
    prompts: list[str],
    seeds: list[int],
    steps: int,
    scale: float,
    batch: int = 64,
    padding: int = NO_PADDING,
) -> Tensor:
    """Pixels in 0..1 (n, 3, height, width)."""
    pictures = []
    for start in range(0, len(prompts), batch):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds[start : start + batch]]
        result = pipeline(
            prompts[start : start + batch],
            num_inference_steps=steps,
            guidance_scale=scale,
            generator=generators,
            max_sequence_length=padding,
            output_type="pt",
        )
        pictures.append(result.images.float().cpu())
    return torch.cat(pictures)
