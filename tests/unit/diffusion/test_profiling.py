"""Profiles come from the engine's own loop: the requested number of steps of the requested batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.engine import Denoiser
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.profiling import ProfiledBatch, profile_batch, profile_batches, profile_size
from pentimento.domain.errors import Internal
from tests.unit.diffusion.engine.loops import Scripted
from tests.unit.diffusion.specs import spec_with

SHORT = spec_with(num_inference_steps=3)


def test_every_step_is_measured_for_each_repeat(model: DiffusionModel) -> None:
    profile = profile_batch(model, Denoiser(model), ProfiledBatch(SHORT, batch_size=2, repeats=4))

    assert profile is not None
    assert (profile.width_px, profile.height_px, profile.guided, profile.batch_size) == (32, 32, True, 2)
    assert [cost.sample_count for cost in profile.steps] == [4, 4, 4]
    assert all(cost.mean_s > 0 for cost in profile.steps)
    assert profile.step.sample_count == 12
    assert profile.peak_memory_bytes is None or profile.peak_memory_bytes > 0


def test_profile_size_measures_once_and_failures_are_raised(model: DiffusionModel) -> None:
    profile = profile_size(model, Denoiser(model), SHORT, repeats=2)

    assert [cost.sample_count for cost in (profile.prepare, profile.decode, profile.encode)] == [2, 2, 2]
    assert min(profile.prepare.mean_s, profile.decode.mean_s, profile.encode.mean_s) > 0

    def fail(number: int, inputs: Any, prediction: Tensor) -> Tensor:
        raise RuntimeError("broken")

    with pytest.raises(Internal):
        profile_batch(model, Scripted(model, fail), ProfiledBatch(SHORT, 1, 1))


def refuse(number: int, inputs: Any, prediction: Tensor) -> Tensor:
    if len(inputs.latents) > 4:
        raise torch.OutOfMemoryError("no memory")
    return prediction


def test_batches_that_do_not_fit_are_left_out_and_larger_ones_not_tried(model: DiffusionModel) -> None:
    scripted = Scripted(model, refuse)
    loads = [ProfiledBatch(SHORT, size, 1) for size in (8, 1, 4, 2)]

    sizes = [profile.batch_size for profile in profile_batches(model, scripted, loads)]

    assert sizes == [1, 2]
