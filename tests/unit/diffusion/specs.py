"""Specs and paintings as these tests need them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.painting import Painting, PaintingRequest, denoise_step, prepare
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec, Scheduler

SPEC = GenerationSpec("a red circle", "blurred", "tiny", 32, 32, 8, 3.0, Scheduler.DDIM, seed=7)


def spec_with(**changes: Any) -> GenerationSpec:
    return replace(SPEC, **changes)


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
