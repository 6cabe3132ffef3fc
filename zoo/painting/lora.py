"""Generate images in a LoRA's style: at any weight, and with the LoRA switched on during the run.

Katz (section 6, bounded asynchronous loading) starts an image without its LoRA and patches it in after at most K steps,
with K from the similarity of the latents with and without it. The functions here generate both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusionPipeline
from torch import Tensor
from torch.nn import functional

from zoo.painting.pipeline import generate


@dataclass(frozen=True)
class StyledImages:
    pixels: Tensor  # (n, 3, height, width) in 0..1
    latents: Tensor  # (steps, n, channels, height, width): after each step


def add_style(pipeline: StableDiffusionPipeline, folder: Path, style: str) -> None:
    """Load an exported LoRA under the name `style`; it takes effect at the weights of later images."""
    pipeline.load_lora_weights(folder, adapter_name=style, weight_name="pytorch_lora_weights.safetensors")


def generate_styled(
    pipeline: StableDiffusionPipeline,
    style: str,
    prompts: list[str],
    seeds: list[int],
    steps: int,
    scale: float,
    weight: float = 1.0,
    steps_without: int = 0,
) -> StyledImages:
    """Generate with an added style, switched on at `weight` after the first `steps_without` steps.

    It is never on if `steps_without` equals `steps`. The pipeline keeps the last weight.
    """
    batches: list[Tensor] = []

    def pipeline_of_a_batch(texts: list[str], **options: Any) -> Any:
        pipeline.set_adapters(style, 0.0 if steps_without > 0 else weight)
        passed: list[Tensor] = []

        def end_of_step(_: object, index: int, timestep: object, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            passed.append(tensors["latents"].float().cpu())
            if index + 1 == steps_without:
                pipeline.set_adapters(style, weight)
            return tensors

        result = pipeline(texts, callback_on_step_end=end_of_step, **options)
        batches.append(torch.stack(passed))
        return result

    pixels = generate(pipeline_of_a_batch, prompts, seeds, steps, scale)
    return StyledImages(pixels, torch.cat(batches, dim=1))


def latent_cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of two runs' latents (steps, n, ...) after each step, for each image: (steps, n)."""
    return functional.cosine_similarity(first.flatten(2), second.flatten(2), dim=2)
