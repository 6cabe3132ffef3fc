"""Sample with Euler's method on the straight path of a flow-matching model (Lipman et al. 2023; Esser et al. 2024): the
latent before a step is sigma * noise + (1 - sigma) * clean, and the network predicts noise - clean."""

import math
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import FlowConfig, TimeShift
from pentimento.diffusion.schedulers.schedule import SamplerState, Schedule, StepSequence

Levels = npt.NDArray[np.floating[Any]]


class FlowLevel(Protocol):
    """Name the noise's share of the latent before a step."""

    @property
    def sigma(self) -> float: ...


Step = TypeVar("Step", bound=FlowLevel)


@dataclass(frozen=True)
class FlowSchedule(Schedule, Generic[Step]):
    """Hold the steps of a sampler along a flow's straight path; subclasses add `advance`. Latents are stored unchanged:
    all samplers of a model share one form of noise."""

    config: FlowConfig
    steps: tuple[Step, ...]

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index`."""
        sigma = self.steps[step_index].sigma
        return sigma * noise + (1.0 - sigma) * clean


@dataclass(frozen=True)
class FlowStep:
    """Hold the level before a step, and the (negative) distance to the next one."""

    sigma: float
    difference: float


@dataclass(frozen=True)
class FlowMatchEulerSchedule(FlowSchedule[FlowStep]):
    """Take the steps of Euler."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        latent = state.latent.float()
        following = (latent + step.difference * prediction).to(prediction.dtype)
        return SamplerState(following, self.order.after(state.step_index)), latent - step.sigma * prediction


def make_flow_match_euler_schedule(config: FlowConfig, order: StepSequence) -> FlowMatchEulerSchedule:
    """Build the schedule. Raises ValueError for more steps than training timesteps."""
    trained, step_count = config.num_train_timesteps, order.step_count
    if step_count > trained:
        raise ValueError(f"{step_count} steps do not fit a training schedule of {trained}")
    shifted = _shifted_by_size if config.use_dynamic_shifting else _shifted
    levels = shifted(_unshifted_levels(config, step_count), config)
    if config.shift_terminal:
        levels = _ending_at(levels, config.shift_terminal)
    whole = torch.from_numpy(levels).to(torch.float32)
    following = torch.cat([whole[1:], torch.zeros(1)])[order.landings]
    taken = whole[order.levels]
    steps = tuple(FlowStep(*row) for row in torch.stack((taken, following - taken), dim=1).tolist())
    return FlowMatchEulerSchedule(taken * trained, noise_ratios(taken), order, config, steps)


def noise_ratios(levels: Tensor) -> tuple[float, ...]:
    """Return the ratios of noise to image of levels (count,); infinite where no image is left."""
    shares = levels.double().clamp(max=1.0)
    return tuple((shares / (1 - shares)).tolist())


def _unshifted_levels(config: FlowConfig, step_count: int) -> Levels:
    """Return the levels before steps 0 to `step_count` - 1, before the shift; in diffusers' precision."""
    if config.even_levels:
        return np.linspace(1.0, 1 / step_count, step_count).astype(np.float32)
    trained = config.num_train_timesteps
    ends: Levels = np.array([trained, 1], dtype=np.float32) / np.float32(trained)
    if not config.use_dynamic_shifting:
        # diffusers shifts twice: the ends of the trained range first, then every step between them.
        ends = _shifted(ends, config)
    return np.linspace(float(ends[0]) * trained, float(ends[1]) * trained, step_count) / trained


def _shifted(levels: Levels, config: FlowConfig) -> Levels:
    """Return the levels shifted towards noise (Esser et al. 2024, equation 23)."""
    shifted: Levels = config.shift * levels / (1 + (config.shift - 1) * levels)
    return shifted


def _shifted_by_size(levels: Levels, config: FlowConfig) -> Levels:
    """Return the levels shifted the further towards noise, the larger the image is."""
    strength = config.size_shift(len(levels))
    if config.time_shift_type is TimeShift.EXPONENTIAL:
        strength = math.exp(strength)
    shifted: Levels = strength / (strength + (1 / levels - 1))
    return shifted


def _ending_at(levels: Levels, terminal: float) -> Levels:
    """Return the levels stretched so that the last one is `terminal`. Raises ValueError for a single level: it is pure
    noise."""
    signal = 1 - levels
    if not signal[-1]:
        raise ValueError("this schedule needs at least 2 steps")
    stretched: Levels = 1 - signal / (signal[-1] / (1 - terminal))
    return stretched
