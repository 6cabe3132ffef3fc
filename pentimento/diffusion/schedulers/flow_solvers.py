"""Sample a flow-matching model with DPM-Solver++ (2M) of Lu et al. 2022, as SANA (Xie et al. 2024) does, or in a few
steps of a continuous-time consistency model (SCM: Lu and Song 2024), as SANA-Sprint (Chen et al. 2025) does.

diffusers keeps SCM's latents in trigonometric form, cos(angle) * clean + sin(angle) * noise. Divided by
cos(angle) + sin(angle) they are the flow's, which is also what the network takes; one step is then a prediction of the
clean latent, and fresh noise for the next level.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import FlowConfig
from pentimento.diffusion.schedulers.dpm_solver import DpmSolverStep, solver_step
from pentimento.diffusion.schedulers.flow_match_euler import FlowSchedule, noise_ratios
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.diffusion.schedulers.unit_variance import SignalLevel

# The angle of the first step, and that of the second of two, in diffusers' pipeline of SANA-Sprint.
_FIRST_ANGLE, _MIDDLE_ANGLE = 1.57080, 1.3


@dataclass(frozen=True)
class FlowDpmSolverSchedule(FlowSchedule[DpmSolverStep]):
    """Take the steps of DPM-Solver++ along a flow's path."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        clean = state.latent - step.sigma * prediction
        return step.solved(state, clean, None, self.order.after(state.step_index)), clean


def make_flow_dpm_solver_schedule(config: FlowConfig, order: StepSequence) -> FlowDpmSolverSchedule:
    """Build the schedule. Raises ValueError for more steps than training timesteps."""
    trained, step_count = config.num_train_timesteps, order.step_count
    _check_count(step_count, trained)
    unshifted = 1.0 - np.linspace(1, 1 / trained, step_count + 1)
    shifted = np.flip(config.shift * unshifted / (1 + (config.shift - 1) * unshifted))[:-1].copy()
    timesteps = torch.from_numpy((shifted * trained).astype(np.int64))
    sigmas = torch.from_numpy(np.concatenate([shifted, [0.0]]).astype(np.float32))
    steps = tuple(_solver_step(sigmas, index, order) for index in range(step_count))
    return FlowDpmSolverSchedule(timesteps[order.levels], noise_ratios(sigmas[order.levels]), order, config, steps)


def _solver_step(sigmas: Tensor, index: int, order: StepSequence) -> DpmSolverStep:
    """Return a step: of the first order at the start and where no noise is left."""
    start, end = (_flow_level(sigmas[order.level_of(step)]) for step in (index, order.after(index)))
    if index == 0 or order.after(index) == order.step_count:
        return solver_step(start, end, None)
    return solver_step(start, end, _flow_level(sigmas[order.level_of(order.before(index))]))


def _flow_level(sigma: Tensor) -> SignalLevel:
    alpha = 1 - sigma
    return SignalLevel(alpha, sigma, torch.log(alpha) - torch.log(sigma))


@dataclass(frozen=True)
class ScmStep:
    """Hold the levels before and after a step."""

    sigma: float
    following: float


@dataclass(frozen=True)
class ScmSchedule(FlowSchedule[ScmStep]):
    """Take the steps of a continuous-time consistency model."""

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return unit noise as the latent before step 0."""
        return self.steps[0].sigma * noise

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent, which the last step returns as the next latent."""
        step = self.steps[state.step_index]
        clean = state.latent.float() - step.sigma * prediction
        following = clean if noise is None else (1.0 - step.following) * clean + step.following * noise
        return SamplerState(following.to(prediction.dtype), self.order.after(state.step_index)), clean


def make_scm_schedule(config: FlowConfig, order: StepSequence) -> ScmSchedule:
    """Build the schedule. Raises ValueError for more steps than training timesteps."""
    step_count = order.step_count
    _check_count(step_count, config.num_train_timesteps)
    angles = torch.linspace(_FIRST_ANGLE, 0, step_count + 1)
    if step_count == 2:
        angles[1] = _MIDDLE_ANGLE
    whole = angles.sin() / (angles.cos() + angles.sin())
    taken, following = whole[:-1][order.levels], whole[1:][order.landings]
    steps = tuple(ScmStep(*row) for row in torch.stack((taken, following), dim=1).tolist())
    return ScmSchedule(taken, noise_ratios(taken), order, config, steps, needs_noise=True)


def _check_count(step_count: int, trained: int) -> None:
    if step_count > trained:
        raise ValueError(f"{step_count} steps do not fit a training schedule of {trained}")
