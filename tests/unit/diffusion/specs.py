"""Specs and paintings as these tests need them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.families import ControlResiduals, DiffusionModel, load_model
from pentimento.diffusion.painting import Painting, PaintingRequest, denoise_step, model_input, prepare, take_step
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec, Scheduler

SPEC = GenerationSpec("a red circle", "blurred", "tiny", 32, 32, 8, 3.0, Scheduler.DDIM, seed=7)


def spec_with(**changes: Any) -> GenerationSpec:
    return replace(SPEC, **changes)


def load(directory: Path, dtype: torch.dtype = torch.float32) -> DiffusionModel:
    """Load a checkpoint on the CPU."""
    return load_model(directory, torch.device("cpu"), dtype)


@torch.inference_mode()
def paint(model: DiffusionModel, request: PaintingRequest) -> Tensor:
    """All steps, in this thread; the final latent."""
    return run_steps(model, prepare(model, PromptMemo(model, 8), request)).state.latent


@torch.inference_mode()
def run_steps(model: DiffusionModel, painting: Painting, until: int | None = None) -> Painting:
    last = painting.schedule.step_count if until is None else until
    while painting.state.step_index < last:
        denoise_step(model, painting)
    return painting


@torch.inference_mode()
def paint_controlled(
    model: DiffusionModel, request: PaintingRequest, residuals: Callable[[int], ControlResiduals]
) -> Tensor:
    """Return the final latent of whole passes with the residuals of each step."""
    painting = prepare(model, PromptMemo(model, 8), request)
    while not painting.done:
        inputs = replace(model_input(model, painting), residuals=residuals(painting.state.step_index))
        take_step(model, painting, model.predict(inputs))
    return painting.state.latent
