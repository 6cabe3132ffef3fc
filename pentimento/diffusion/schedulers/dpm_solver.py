"""Sample with DPM-Solver++ (2M) of Lu et al. 2022, algorithm 2: second order from the clean latents of two neighbouring
steps.

Coefficients are computed once, one step at a time on float32 scalars, which gives diffusers' bits. The first step of a
start or of a resumed latent is of order 1, because it has no earlier step. Steps of a thinned schedule stay of order 2:
the slope accounts for the larger distance to the step before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import BetaSchedule, DiffusionConfig, PredictionType, SolverType
from pentimento.diffusion.schedulers.karras import karras_levels, timesteps_at
from pentimento.diffusion.schedulers.noise import positive_alphas, spaced_timesteps_between
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.domain.generation import Scheduler

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


@dataclass(frozen=True)
class DpmSolverSchedule:
    """Hold the steps of DPM-Solver++ (Lu et al. 2022)."""

    config: DiffusionConfig
    timesteps: Tensor
    sigmas: tuple[float, ...]
    steps: tuple[DpmSolverStep, ...]
    order: StepSequence
    scheduler: Scheduler = Scheduler.DPM_SOLVER_PP_2M
    needs_noise: bool = False

    @property
    def step_count(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return unit noise as the latent before step 0."""
        return noise

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index`."""
        step = self.steps[step_index]
        return step.alpha * clean + step.sigma * noise

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the latent into every row of `out`."""
        out.copy_(state.latent)

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        clean = self._clean(step, state.latent, prediction)
        following = step.latent_weight * state.latent.float() + step.clean_weight * clean
        if step.is_second_order and state.previous_clean is not None:
            following = following + step.slope_weight * (step.slope * (clean - state.previous_clean))
        return SamplerState(following.to(clean.dtype), self.order.after(state.step_index), previous_clean=clean), clean

    def _clean(self, step: DpmSolverStep, latent: Tensor, prediction: Tensor) -> Tensor:
        match self.config.prediction_type:
            case PredictionType.EPSILON:
                return (latent - step.sigma * prediction) / step.alpha
            case PredictionType.V_PREDICTION:
                return step.alpha * latent - step.sigma * prediction
            case PredictionType.SAMPLE:
                return prediction

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent in its stored form."""
        return state.latent

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return a stored latent as the state before `step_index`."""
        return SamplerState(latent, step_index)


def make_dpm_solver_schedule(config: DiffusionConfig, order: StepSequence) -> DpmSolverSchedule:
    """Build the schedule. Raises ValueError if the steps do not fit the training schedule."""
    alphas = positive_alphas(config)
    trained_sigmas = ((1 - alphas) / alphas) ** 0.5
    timesteps, levels = _noise_levels(config, trained_sigmas.numpy(), order.step_count)
    last = 0.0 if config.final_sigma_zero else float(trained_sigmas[0])
    sigmas = torch.from_numpy(np.concatenate([levels, [last]]).astype(np.float32))
    steps = tuple(_step(config, sigmas, index, order) for index in range(order.step_count))
    taken = torch.from_numpy(timesteps)[order.levels]
    return DpmSolverSchedule(config, taken, tuple(sigmas[order.levels].tolist()), steps, order)


def _noise_levels(
    config: DiffusionConfig, trained_sigmas: npt.NDArray[np.float32], step_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return timesteps and sigmas, (step_count,) each."""
    if not config.use_karras_sigmas:
        timesteps = spaced_timesteps_between(config, step_count).round().astype(np.int64)
        return timesteps, np.interp(timesteps, np.arange(len(trained_sigmas)), trained_sigmas)
    levels = karras_levels(float(trained_sigmas[-1]), float(trained_sigmas[0]), step_count)
    unrounded = timesteps_at(levels, trained_sigmas)
    # diffusers truncates instead of rounding for this noise schedule only.
    is_cosine = config.beta_schedule is BetaSchedule.SQUARED_COSINE
    return (unrounded if is_cosine else unrounded.round()).astype(np.int64), levels


def _step(config: DiffusionConfig, sigmas: Tensor, index: int, order: StepSequence) -> DpmSolverStep:
    alpha, sigma, log_snr = _level(sigmas[order.level_of(index)])
    alpha_next, sigma_next, log_snr_next = _level(sigmas[order.level_of(order.after(index))])
    span = log_snr_next - log_snr
    shrink = alpha_next * (torch.exp(-span) - 1.0)
    first_order = (float(alpha), float(sigma), float(sigma_next / sigma), float(-shrink))
    if not _may_be_second_order(config, order, index):
        return DpmSolverStep(*first_order)
    ratio = (log_snr - _level(sigmas[order.level_of(order.before(index))])[2]) / span
    if config.solver_type is SolverType.MIDPOINT:
        weight = -0.5 * shrink
    else:
        weight = alpha_next * ((torch.exp(-span) - 1.0) / span + 1.0)
    return DpmSolverStep(*first_order, float(1.0 / ratio), float(weight), is_second_order=True)


def _level(sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return alpha and sigma at unit variance, and half the log of the signal-to-noise ratio."""
    alpha = 1 / ((sigma**2 + 1) ** 0.5)
    scaled = sigma * alpha
    return alpha, scaled, torch.log(alpha) - torch.log(scaled)


def _may_be_second_order(config: DiffusionConfig, order: StepSequence, index: int) -> bool:
    if index == 0:
        return False
    lower_final = config.final_sigma_zero or config.euler_at_final
    lower_final = lower_final or (config.lower_order_final and order.count_from(0) < _FEW_STEPS)
    return not (lower_final and order.after(index) == order.step_count)
