"""Sample with DPM-Solver++ (2M) of Lu et al. 2022, algorithm 2: second order from the clean latents of two neighbouring
steps.

Coefficients are computed once, one step at a time on float32 scalars, which gives diffusers' bits. The first step of a
start or of a resumed latent is of order 1, because it has no earlier step. Steps of a thinned schedule stay of order 2:
the slope accounts for the larger distance to the step before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import BetaSchedule, DiffusionConfig, SolverType
from pentimento.diffusion.schedulers.noise import positive_alphas
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.diffusion.schedulers.unit_variance import SignalLevel, UnitVarianceSchedule, signal_level, solver_levels
from pentimento.domain.generation import Scheduler, SigmaSpacing

# diffusers' threshold below which `lower_order_final` takes effect.
_FEW_STEPS = 15


@dataclass(frozen=True)
class DpmSolverStep:
    """Hold the scalars of one step: the level (`alpha`, `sigma` at unit variance), the weights of latent and clean
    latent, and for the second order `slope` times the difference of the clean latents, weighted by `slope_weight`."""

    alpha: float
    sigma: float
    latent_weight: float
    clean_weight: float
    slope: float = 0.0
    slope_weight: float = 0.0
    is_second_order: bool = False
    noise_deviation: float = 0.0

    def solved(self, state: SamplerState, clean: Tensor, noise: Tensor | None, after: int) -> SamplerState:
        """Return the state before the step `after`, for the predicted clean latent."""
        following = self.latent_weight * state.latent.float() + self.clean_weight * clean
        if self.is_second_order and state.earlier:
            following = following + self.slope_weight * (self.slope * (clean - state.earlier[0]))
        if noise is not None:
            following = following + self.noise_deviation * noise
        return SamplerState(following.to(clean.dtype), after, (clean,))


@dataclass(frozen=True)
class DpmSolverSchedule(UnitVarianceSchedule[DpmSolverStep]):
    """Take the steps of DPM-Solver++ (Lu et al. 2022), or of its stochastic form."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        clean = self._clean(step, state.latent, prediction)
        return step.solved(state, clean, noise, self.order.after(state.step_index)), clean


def make_dpm_solver_schedule(config: DiffusionConfig, order: StepSequence) -> DpmSolverSchedule:
    """Build the schedule. Raises ValueError if the steps do not fit the training schedule."""
    alphas = positive_alphas(config)
    # diffusers truncates Karras's timesteps for this noise schedule only.
    rounds = () if config.beta_schedule is BetaSchedule.SQUARED_COSINE else (SigmaSpacing.KARRAS,)
    last = 0.0 if config.final_sigma_zero else float(((1 - alphas[0]) / alphas[0]) ** 0.5)
    timesteps, sigmas = solver_levels(config, alphas, order.step_count, rounds, last)
    is_stochastic = config.scheduler is Scheduler.DPM_SOLVER_PP_2M_SDE
    steps = tuple(_step(config, sigmas, index, order, is_stochastic) for index in range(order.step_count))
    levels = tuple(sigmas[order.levels].tolist())
    return DpmSolverSchedule(timesteps[order.levels], levels, order, config, steps, needs_noise=is_stochastic)


def _step(
    config: DiffusionConfig, sigmas: Tensor, index: int, order: StepSequence, is_stochastic: bool
) -> DpmSolverStep:
    start, end = (signal_level(sigmas[order.level_of(step)]) for step in (index, order.after(index)))
    before = signal_level(sigmas[order.level_of(order.before(index))]) if index else None
    is_second = before is not None and _may_be_second_order(config, order, index)
    return solver_step(start, end, before if is_second else None, config.solver_type, is_stochastic=is_stochastic)


def solver_step(
    start: SignalLevel,
    end: SignalLevel,
    before: SignalLevel | None,
    solver_type: SolverType = SolverType.MIDPOINT,
    *,
    is_stochastic: bool = False,
) -> DpmSolverStep:
    """Return the step between two levels, of the second order if the level `before` the start is given."""
    span = end.log_snr - start.log_snr
    # The stochastic form integrates over twice the span and replaces the noise that it removes.
    counted = 2.0 * span if is_stochastic else span
    shrink = end.alpha * (1.0 - torch.exp(-counted))
    latent_weight, deviation = end.sigma / start.sigma, 0.0
    if is_stochastic:
        latent_weight = latent_weight * torch.exp(-span)
        deviation = float(end.sigma * torch.sqrt(1.0 - torch.exp(-2 * span)))
    scalars = (float(start.alpha), float(start.sigma), float(latent_weight), float(shrink))
    if before is None:
        return DpmSolverStep(*scalars, noise_deviation=deviation)
    ratio = (start.log_snr - before.log_snr) / span
    if solver_type is SolverType.MIDPOINT:
        weight = 0.5 * shrink
    else:
        weight = end.alpha * ((1.0 - torch.exp(-counted)) / -counted + 1.0)
    return DpmSolverStep(*scalars, float(1.0 / ratio), float(weight), is_second_order=True, noise_deviation=deviation)


def _may_be_second_order(config: DiffusionConfig, order: StepSequence, index: int) -> bool:
    lower_final = config.final_sigma_zero or config.euler_at_final
    lower_final = lower_final or (config.lower_order_final and order.count_from(0) < _FEW_STEPS)
    return not (lower_final and order.after(index) == order.step_count)
