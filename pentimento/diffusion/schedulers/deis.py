"""Sample with DEIS of second order in log-rho form (Zhang and Chen 2023): integrate the noise of two neighbouring
steps, interpolated over the logarithm of the noise level.

Coefficients are computed once, in diffusers' order on float32 scalars. A start or a resumed latent has no earlier
output: its first step is of order 1.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig
from pentimento.diffusion.schedulers.noise import cumulative_alphas
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.diffusion.schedulers.unit_variance import UnitVarianceSchedule, signal_level, solver_levels
from pentimento.domain.generation import SigmaSpacing

# diffusers' threshold below which `lower_order_final` takes effect.
_FEW_STEPS = 15


@dataclass(frozen=True)
class DeisStep:
    """Hold the scalars of one step: its level, the weights of the first order, and of the second order (for the
    predicted noise of this step and of the one before); none where only the first order is taken."""

    alpha: float
    sigma: float
    alpha_next: float
    latent_weight: float
    noise_weight: float
    noise_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class DeisSchedule(UnitVarianceSchedule[DeisStep]):
    """Take the steps of DEIS."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step, latent = self.steps[state.step_index], state.latent
        clean = self._clean(step, latent, prediction)
        predicted = (latent - step.alpha * clean) / step.sigma
        if step.noise_weights and state.earlier:
            now, before = step.noise_weights
            following = step.alpha_next * (latent / step.alpha + now * predicted + before * state.earlier[0])
        else:
            following = step.latent_weight * latent - step.noise_weight * predicted
        return SamplerState(following, self.order.after(state.step_index), (predicted,)), clean


def make_deis_schedule(config: DiffusionConfig, order: StepSequence) -> DeisSchedule:
    """Build the schedule. Raises ValueError if the steps do not fit the training schedule."""
    alphas = cumulative_alphas(config)
    timesteps, sigmas = solver_levels(config, alphas, order.step_count, (SigmaSpacing.KARRAS,), None)
    steps = tuple(_step(config, sigmas, index, order) for index in range(order.step_count))
    return DeisSchedule(timesteps[order.levels], tuple(sigmas[order.levels].tolist()), order, config, steps)


def _step(config: DiffusionConfig, sigmas: Tensor, index: int, order: StepSequence) -> DeisStep:
    start, end = (signal_level(sigmas[order.level_of(step)]) for step in (index, order.after(index)))
    growth = torch.exp(end.log_snr - start.log_snr) - 1.0
    first_order = (
        float(start.alpha),
        float(start.sigma),
        float(end.alpha),
        float(end.alpha / start.alpha),
        float(end.sigma * growth),
    )
    ends = order.after(index) == order.step_count
    if index == 0 or (ends and config.lower_order_final and order.count_from(0) < _FEW_STEPS):
        return DeisStep(*first_order)
    before = signal_level(sigmas[order.level_of(order.before(index))])
    rho, rho_start, rho_before = (level.sigma / level.alpha for level in (end, start, before))
    now = _integral(rho, rho_start, rho_before) - _integral(rho_start, rho_start, rho_before)
    earlier = _integral(rho, rho_before, rho_start) - _integral(rho_start, rho_before, rho_start)
    return DeisStep(*first_order, (float(now), float(earlier)))


def _integral(at: Tensor, of: Tensor, other: Tensor) -> Tensor:
    """Return the integral up to `at` of the weight in log rho that is 1 at `of` and 0 at `other`."""
    at_log, of_log, other_log = (torch.tensor(np.log(level.numpy())) for level in (at, of, other))
    return at * (-other_log + at_log - 1) / (of_log - other_log)
