"""Generate images from captions by an exported pipeline: diffusers', with one seed per image."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import DiffusionPipeline, StableDiffusionPipeline
from diffusers.utils import logging
from torch import Tensor
from transformers.utils import logging as transformers_logging

from zoo.devices import device

Pipeline = TypeVar("Pipeline", bound=DiffusionPipeline)


def load_pipeline(folder: Path) -> StableDiffusionPipeline:
    return load_quietly(StableDiffusionPipeline, folder)


def load_quietly(kind: type[Pipeline], folder: Path, **parts: object) -> Pipeline:
    """Return a directory as a pipeline of that kind, without diffusers' output while it loads and runs."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = kind.from_pretrained(folder, **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device())


def generate(
    pipeline: Callable[..., Any], prompts: list[str], seeds: list[int], steps: int, scale: float, batch: int = 64
) -> Tensor:
    """Return pixels in 0..1 (n, 3, height, width), by a pipeline or an equivalent function."""
    pictures = []
    for start in range(0, len(prompts), batch):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds[start : start + batch]]
        result = pipeline(
            prompts[start : start + batch],
            num_inference_steps=steps,
            guidance_scale=scale,
            generator=generators,
            output_type="pt",
        )
        pictures.append(result.images.float().cpu())
    return torch.cat(pictures)
