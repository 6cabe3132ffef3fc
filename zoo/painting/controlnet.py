"""Generate images under a ControlNet by diffusers' pipeline, and record the ControlNet's residuals at each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline, StableDiffusionPipeline
from torch import Tensor
from torch.nn import functional

from zoo.drawing.conditions import as_rgb_condition


def add_control(pipeline: StableDiffusionPipeline, folder: Path) -> StableDiffusionControlNetPipeline:
    """Return a pipeline of the same parts with an exported ControlNet."""
    controlnet = ControlNetModel.from_pretrained(folder).to(pipeline.device)
    controlled = StableDiffusionControlNetPipeline(
        **pipeline.components, controlnet=controlnet, requires_safety_checker=False
    )
    controlled.set_progress_bar_config(disable=True)
    return controlled


def generate_controlled(
    pipeline: StableDiffusionControlNetPipeline,
    prompts: list[str],
    seeds: list[int],
    conditions: Tensor,
    steps: int,
    scale: float,
    control_scale: float = 1.0,
    batch: int = 64,
) -> Tensor:
    """Return pixels in 0..1 (n, 3, height, width), each with its condition (1 or 3, height, width) in 0..1."""
    pictures = []
    for start in range(0, len(prompts), batch):
        part = slice(start, start + batch)
        result = pipeline(
            prompts[part],
            image=as_rgb_condition(conditions[part]),
            num_inference_steps=steps,
            guidance_scale=scale,
            controlnet_conditioning_scale=control_scale,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds[part]],
            output_type="pt",
        )
        pictures.append(result.images.float().cpu())
    return torch.cat(pictures)


@contextmanager
def recorded_residuals(controlnet: ControlNetModel) -> Iterator[list[Tensor]]:
    """Record, inside the block, each call's residuals of the ControlNet: (n, numbers) a call.

    Under classifier-free guidance n counts the unconditional half, which comes first.
    """
    calls: list[Tensor] = []

    def record(_: object, __: object, output: tuple[list[Tensor], Tensor]) -> None:
        down, middle = output
        calls.append(torch.cat([residual.flatten(1).float().cpu() for residual in (*down, middle)], dim=1))

    hook = controlnet.register_forward_hook(record)
    try:
        yield calls
    finally:
        hook.remove()


def adjacent_cosines(residuals: list[Tensor]) -> Tensor:
    """Return the cosine of each step's residuals with the step before's: (steps - 1, n)."""
    steps = torch.stack(residuals)
    return functional.cosine_similarity(steps[1:], steps[:-1], dim=2)
