"""Euler's method on the probability-flow ODE (Karras et al. 2022, algorithm 2 without churn), as k-diffusion and
diffusers run it: latents carry variance 1 + sigma^2, and the network sees them scaled back to unit variance."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import PredictionType, SchedulerConfig, TimestepSpacing
from pentimento.diffusion.schedulers.noise import cumulative_alphas, spaced_timesteps
from pentimento.diffusion.schedulers.schedule import SamplerState
from pentimento.domain.generation import Scheduler

# The last alpha-bar of a zero-SNR schedule would make the first sigma infinite: float16's smallest above zero instead.
_SMALLEST_ALPHA = 2**-24


@dataclass(frozen=True)
class EulerStep:
    """Scalars of one step; `scale` is sqrt(sigma^2 + 1), the v-prediction ones combine output and input into x0."""

    sigma: float
    scale: float
    difference: float
    v_output: float
    v_input_divisor: float


@dataclass(frozen=True)
class EulerSchedule:
    config: SchedulerConfig
    timesteps: Tensor
    sigmas: tuple[float, ...]
    steps: tuple[EulerStep, ...]
    initial_scale: float
    scheduler: Scheduler = Scheduler.EULER
    needs_noise: bool = False

    @property
    def step_count(self) -> int:
        return len(self.steps)

    def initial_latent(self, noise: Tensor) -> Tensor:
        return noise * self.initial_scale

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        return clean + noise * self.steps[step_index].sigma

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        torch.div(state.latent.expand_as(out), self.steps[state.step_index].scale, out=out)

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        step = self.steps[state.step_index]
        latent = state.latent.float()
        clean = self._clean(step, latent, prediction)
        following = latent + (latent - clean) / step.sigma * step.difference
        return SamplerState(following.to(prediction.dtype), state.step_index + 1), clean

    def _clean(self, step: EulerStep, latent: Tensor, prediction: Tensor) -> Tensor:
        match self.config.prediction_type:
            case PredictionType.EPSILON:
                return latent - step.sigma * prediction
            case PredictionType.V_PREDICTION:
                return prediction * step.v_output + latent / step.v_input_divisor
            case PredictionType.SAMPLE:
                return prediction

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        return state.latent / self.steps[state.step_index].scale

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        return SamplerState(latent * self.steps[step_index].scale, step_index)


def make_euler_schedule(config: SchedulerConfig, step_count: int) -> EulerSchedule:
    """Raises ValueError when the steps do not fit the training schedule."""
    alphas = cumulative_alphas(config)
    if config.rescale_betas_zero_snr:
        alphas[-1] = _SMALLEST_ALPHA
    trained_sigmas = ((1 - alphas) / alphas) ** 0.5
    timesteps = spaced_timesteps(config, step_count).astype(np.float32)
    levels = np.interp(timesteps, np.arange(len(trained_sigmas)), trained_sigmas.numpy())
    last = 0.0 if config.final_sigma_zero else float(trained_sigmas[0])
    sigmas = torch.from_numpy(np.concatenate([levels, [last]]).astype(np.float32))
    return EulerSchedule(
        config,
        torch.from_numpy(timesteps),
        tuple(sigmas[:-1].tolist()),
        _steps(sigmas),
        _initial_scale(config, sigmas),
    )


def _steps(sigmas: Tensor) -> tuple[EulerStep, ...]:
    sigma = sigmas[:-1]
    scale = (sigma**2 + 1) ** 0.5
    columns = (sigma, scale, sigmas[1:] - sigma, -sigma / scale, sigma**2 + 1)
    return tuple(EulerStep(*row) for row in torch.stack(columns, dim=1).tolist())


def _initial_scale(config: SchedulerConfig, sigmas: Tensor) -> float:
    largest = sigmas.max()
    if config.timestep_spacing is TimestepSpacing.LEADING:
        largest = (largest**2 + 1) ** 0.5
    return float(largest)
