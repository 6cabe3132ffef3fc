"""Share what samplers have in common that keep latents at unit variance: DDIM, DPM-Solver++, UniPC, DEIS, LCM, TCD."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig, PredictionType
from pentimento.diffusion.schedulers.noise import spaced_timesteps_between
from pentimento.diffusion.schedulers.schedule import Schedule
from pentimento.diffusion.schedulers.spacings import spaced_levels, timesteps_at
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import SigmaSpacing


class StepLevel(Protocol):
    """Name the level before a step: the shares of image and noise; their squares sum to 1."""

    @property
    def alpha(self) -> float: ...

    @property
    def sigma(self) -> float: ...


Step = TypeVar("Step", bound=StepLevel)


@dataclass(frozen=True)
class UnitVarianceSchedule(Schedule, Generic[Step]):
    """Hold the steps of a sampler that keeps latents at unit variance; subclasses add `advance`."""

    config: DiffusionConfig
    steps: tuple[Step, ...]

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index`."""
        step = self.steps[step_index]
        return step.alpha * clean + step.sigma * noise

    def _clean(self, step: StepLevel, latent: Tensor, prediction: Tensor) -> Tensor:
        match self.config.prediction_type:
            case PredictionType.EPSILON:
                return (latent - step.sigma * prediction) / step.alpha
            case PredictionType.V_PREDICTION:
                return step.alpha * latent - step.sigma * prediction
            case PredictionType.SAMPLE:
                return prediction

    def _noise(self, step: StepLevel, latent: Tensor, prediction: Tensor) -> Tensor:
        match self.config.prediction_type:
            case PredictionType.EPSILON:
                return prediction
            case PredictionType.V_PREDICTION:
                return step.alpha * prediction + step.sigma * latent
            case PredictionType.SAMPLE:
                return (latent - step.alpha * prediction) / step.sigma


def check_levels(config: DiffusionConfig, alphas: Tensor) -> None:
    """Raise InvalidArgument for a step of pure noise under epsilon prediction: the clean image cannot be computed from
    noise only."""
    if config.prediction_type is PredictionType.EPSILON and not alphas.all():
        reason = "divides by zero in a step of zero SNR (rescale_betas_zero_snr) where the model predicts epsilon"
        raise InvalidArgument.of("scheduler", f"must be another one for this model: {config.scheduler.value} {reason}")


@dataclass(frozen=True)
class SignalLevel:
    """Hold one level as scalars of float32: the shares of image and noise, and half the log of the signal-to-noise
    ratio."""

    alpha: Tensor
    sigma: Tensor
    log_snr: Tensor


def signal_level(ratio: Tensor) -> SignalLevel:
    """Return the level with a ratio of noise to image."""
    alpha = 1 / ((ratio**2 + 1) ** 0.5)
    sigma = ratio * alpha
    return SignalLevel(alpha, sigma, torch.log(alpha) - torch.log(sigma))


def solver_levels(
    config: DiffusionConfig, alphas: Tensor, step_count: int, rounds: Sequence[SigmaSpacing], last: float | None
) -> tuple[Tensor, Tensor]:
    """Return the timesteps (step_count,) and ratios of noise to image (step_count + 1,) of a solver that counts both
    ends of each step. Timesteps of the spacings in `rounds` are rounded, those of other spacings truncated, as
    diffusers' class of the solver does. `last`: the final ratio; None for the smallest before it or in training."""
    trained = (((1 - alphas) / alphas) ** 0.5).numpy()
    if config.sigma_spacing is SigmaSpacing.TIMESTEPS:
        timesteps = spaced_timesteps_between(config, step_count).round().astype(np.int64)
        levels, smallest = np.interp(timesteps, np.arange(len(trained)), trained), float(trained[0])
    else:
        levels = spaced_levels(config.sigma_spacing, float(trained[-1]), float(trained[0]), step_count)
        unrounded, smallest = timesteps_at(levels, trained), levels[-1]
        timesteps = (unrounded.round() if config.sigma_spacing in rounds else unrounded).astype(np.int64)
    ratios = np.concatenate([levels, [smallest if last is None else last]])
    return torch.from_numpy(timesteps), torch.from_numpy(ratios.astype(np.float32))
