"""Specs and denoisings as these tests need them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.fixtures.checkpoints import SIDE_PX
from pentimento.diffusion.denoising import Denoising, DenoisingRequest, denoise_step, model_input, prepare, take_step
from pentimento.diffusion.families import Conditioning, ControlResiduals, DenoiserInput, DiffusionModel, load_model
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec, Scheduler

SPEC = GenerationSpec("a red circle", "blurred", "tiny", 32, 32, 8, 3.0, Scheduler.DDIM, seed=7)


def spec_with(**changes: Any) -> GenerationSpec:
    return replace(SPEC, **changes)


def load(directory: Path, dtype: torch.dtype = torch.float32) -> DiffusionModel:
    """Load a checkpoint on the CPU."""
    return load_model(directory, torch.device("cpu"), dtype)


@torch.inference_mode()
def denoise(model: DiffusionModel, request: DenoisingRequest) -> Tensor:
    """Run all steps in this thread, and return the final latent."""
    return run_steps(model, prepare(model, PromptMemo(model, 8), request)).state.latent


@torch.inference_mode()
def run_steps(model: DiffusionModel, denoising: Denoising, until: int | None = None) -> Denoising:
    last = denoising.schedule.step_count if until is None else until
    while denoising.state.step_index < last:
        denoise_step(model, denoising)
    return denoising


@torch.inference_mode()
def denoise_controlled(
    model: DiffusionModel, request: DenoisingRequest, residuals: Callable[[int], ControlResiduals]
) -> Tensor:
    """Return the final latent of whole passes with the residuals of each step."""
    denoising = prepare(model, PromptMemo(model, 8), request)
    while not denoising.done:
        inputs = replace(model_input(model, denoising), residuals=residuals(denoising.state.step_index))
        take_step(model, denoising, model.predict(inputs))
    return denoising.state.latent


def rows_of(
    model: DiffusionModel, prompts: Sequence[str], timesteps: Tensor, side_px: int = SIDE_PX, **more: Any
) -> DenoiserInput:
    """Return a row of random latents for each prompt at its timestep; `more` are other inputs."""
    shape = (len(prompts), *model.latent_shape(side_px, side_px)[1:])
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        texts = [model.conditioning(model.encode_prompt(prompt), side_px, side_px) for prompt in prompts]
        return DenoiserInput(latents, timesteps, Conditioning.concatenate(texts), **more)


def part_of(inputs: DenoiserInput, rows: slice) -> DenoiserInput:
    texts = inputs.conditioning.rows(rows.start, rows.stop)
    return DenoiserInput(inputs.latents[rows], inputs.timesteps[rows], texts)
