"""Sample with Euler's method on the straight path of a flow-matching model (Lipman et al. 2023; Esser et al. 2024): the
latent before a step is sigma * noise + (1 - sigma) * clean, and the network predicts noise - clean."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import FlowConfig
from pentimento.diffusion.schedulers.schedule import SamplerState, Schedule, StepSequence
from pentimento.domain.generation import Scheduler

Levels = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class FlowStep:
    """Hold the level before a step, and the (negative) distance to the next one."""

    sigma: float
    difference: float


@dataclass(frozen=True)
class FlowMatchEulerSchedule(Schedule):
    """Hold the steps of Euler along a flow's straight path. Latents are stored unchanged: all samplers of a model share
    one form of noise."""

    config: FlowConfig
    steps: tuple[FlowStep, ...]

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler of the steps."""
        return Scheduler.FLOW_MATCH_EULER

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index`."""
        sigma = self.steps[step_index].sigma
        return sigma * noise + (1.0 - sigma) * clean

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        latent = state.latent.float()
        following = latent + step.difference * prediction
        return SamplerState(
            following.to(prediction.dtype), self.order.after(state.step_index)
        ), latent - step.sigma * prediction


def make_flow_match_euler_schedule(config: FlowConfig, order: StepSequence) -> FlowMatchEulerSchedule:
    """Build the schedule. Raises ValueError for more steps than training timesteps."""
    trained, step_count = config.num_train_timesteps, order.step_count
    if step_count > trained:
        raise ValueError(f"{step_count} steps do not fit a training schedule of {trained}")
    # diffusers shifts twice: the ends of the trained range first, then every step between them.
    ends = _shifted(np.array([trained, 1], dtype=np.float32) / np.float32(trained), config.shift)
    timesteps = np.linspace(float(ends[0]) * trained, float(ends[1]) * trained, step_count)
    whole = torch.from_numpy(_shifted(timesteps / trained, config.shift)).to(torch.float32)
    following = torch.cat([whole[1:], torch.zeros(1)])[order.landings]
    levels = whole[order.levels]
    steps = tuple(FlowStep(*row) for row in torch.stack((levels, following - levels), dim=1).tolist())
    ratios = levels.double() / (1 - levels.double())
    return FlowMatchEulerSchedule(levels * trained, tuple(ratios.tolist()), order, config, steps)


def _shifted(levels: Levels, shift: float) -> Levels:
    """Return the levels shifted towards noise (Esser et al. 2024, equation 23)."""
    shifted: Levels = shift * levels / (1 + (shift - 1) * levels)
    return shifted
