"""Sample with Euler's method on the probability-flow ODE (Karras et al. 2022, algorithm 2 without churn) or its
ancestral form, as in k-diffusion and diffusers: latents have variance 1 + sigma^2, the network's input variance 1."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig, PredictionType, TimestepSpacing
from pentimento.diffusion.schedulers.noise import positive_alphas, spaced_timesteps
from pentimento.diffusion.schedulers.schedule import SamplerState, Schedule, StepSequence
from pentimento.diffusion.schedulers.spacings import spaced_levels, timesteps_at
from pentimento.domain.generation import Scheduler, SigmaSpacing


@dataclass(frozen=True)
class EulerStep:
    """Hold the scalars of one step; `scale` is sqrt(sigma^2 + 1), the v-prediction ones combine output and input into
    x0."""

    sigma: float
    scale: float
    difference: float
    v_output: float
    v_input_divisor: float
    noise_deviation: float


@dataclass(frozen=True)
class EulerSchedule(Schedule):
    """Hold the steps of Euler and Euler ancestral (Karras et al. 2022)."""

    config: DiffusionConfig
    steps: tuple[EulerStep, ...]
    initial_scale: float

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return unit noise as the latent before step 0."""
        return noise * self.initial_scale

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index`."""
        return clean + noise * self.steps[step_index].sigma

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the latent at unit variance into every row of `out`."""
        torch.div(state.latent.expand_as(out), self.steps[state.step_index].scale, out=out)

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        latent = state.latent.float()
        clean = self._clean(step, latent, prediction)
        # In place on tensors allocated here: new memory for each takes as long as the arithmetic.
        following = (latent - clean).div_(step.sigma).mul_(step.difference).add_(latent)
        if noise is not None:
            following += noise * step.noise_deviation
        return SamplerState(following.to(prediction.dtype), self.order.after(state.step_index)), clean

    def _clean(self, step: EulerStep, latent: Tensor, prediction: Tensor) -> Tensor:
        match self.config.prediction_type:
            case PredictionType.EPSILON:
                return latent - step.sigma * prediction
            case PredictionType.V_PREDICTION:
                return prediction * step.v_output + latent / step.v_input_divisor
            case PredictionType.SAMPLE:
                return prediction

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent in its stored form."""
        return state.latent / self.steps[state.step_index].scale

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return a stored latent as the state before `step_index`."""
        return SamplerState(latent * self.steps[step_index].scale, step_index)


def make_euler_schedule(config: DiffusionConfig, order: StepSequence) -> EulerSchedule:
    """Build the schedule of Euler or, by `config.scheduler`, Euler ancestral, which denoises a little further in each
    step and adds fresh noise up to the next level. Raises ValueError if the steps do not fit the training schedule."""
    timesteps, sigmas = noise_levels(config, order.step_count)
    levels = sigmas[order.levels]
    is_ancestral = config.scheduler is Scheduler.EULER_ANCESTRAL
    return EulerSchedule(
        timesteps[order.levels],
        tuple(levels.tolist()),
        order,
        config,
        euler_steps(levels, sigmas[1:][order.landings], is_ancestral=is_ancestral),
        initial_scale(config, sigmas),
        needs_noise=is_ancestral,
    )


def noise_levels(config: DiffusionConfig, step_count: int) -> tuple[Tensor, Tensor]:
    """Return timesteps (step_count,), and sigmas (step_count + 1,) with the final level."""
    alphas = positive_alphas(config)
    trained_sigmas = ((1 - alphas) / alphas) ** 0.5
    timesteps = spaced_timesteps(config, step_count).astype(np.float32)
    levels = np.interp(timesteps, np.arange(len(trained_sigmas)), trained_sigmas.numpy())
    if config.sigma_spacing is not SigmaSpacing.TIMESTEPS:
        levels = spaced_levels(config.sigma_spacing, float(levels[0]), float(levels[-1]), step_count)
        timesteps = timesteps_at(levels, trained_sigmas.numpy()).astype(np.float32)
    last = 0.0 if config.final_sigma_zero else float(trained_sigmas[0])
    return torch.from_numpy(timesteps), torch.from_numpy(np.concatenate([levels, [last]]).astype(np.float32))


def euler_steps(sigma: Tensor, following: Tensor, *, is_ancestral: bool) -> tuple[EulerStep, ...]:
    """Return the steps from levels `sigma` to those `following`."""
    up = torch.zeros_like(sigma)
    down = following
    if is_ancestral:
        up = (following**2 * (sigma**2 - following**2) / sigma**2) ** 0.5
        # Rounding may give a negative value after a very large sigma, where diffusers continues with NaN.
        down = (following**2 - up**2).clamp(min=0.0) ** 0.5
    scale = (sigma**2 + 1) ** 0.5
    columns = (sigma, scale, down - sigma, -sigma / scale, sigma**2 + 1, up)
    return tuple(EulerStep(*row) for row in torch.stack(columns, dim=1).tolist())


def initial_scale(config: DiffusionConfig, sigmas: Tensor) -> float:
    """Return the deviation of the noise before step 0."""
    largest = sigmas.max()
    if config.timestep_spacing is TimestepSpacing.LEADING:
        largest = (largest**2 + 1) ** 0.5
    return float(largest)
