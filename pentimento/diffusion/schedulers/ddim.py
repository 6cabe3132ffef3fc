"""Sample with DDIM (Song et al. 2021), equations 12 and 16. Coefficients are computed once; a step is a few operations
in diffusers' order, so that the results are equal bit for bit."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig, PredictionType
from pentimento.diffusion.schedulers.noise import cumulative_alphas, spaced_timesteps
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler


@dataclass(frozen=True)
class DdimStep:
    """Hold the scalars of one step: for x0 and the noise from the prediction, and for the next latent from both."""

    root_alpha: float
    root_beta: float
    root_alpha_next: float
    direction: float
    noise_deviation: float


@dataclass(frozen=True)
class DdimSchedule:
    """Hold the steps of DDIM (Song et al. 2021)."""

    config: DiffusionConfig
    timesteps: Tensor
    sigmas: tuple[float, ...]
    steps: tuple[DdimStep, ...]
    order: StepSequence
    needs_noise: bool
    scheduler: Scheduler = Scheduler.DDIM

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
        return step.root_alpha * clean + step.root_beta * noise

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the latent into every row of `out`."""
        out.copy_(state.latent)

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        clean, epsilon = self._clean_and_noise(step, state.latent, prediction)
        if self.config.clip_sample:
            clean = clean.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)
        latent = step.root_alpha_next * clean + step.direction * epsilon
        if noise is not None:
            latent = latent + step.noise_deviation * noise
        return SamplerState(latent, self.order.after(state.step_index)), clean

    def _clean_and_noise(self, step: DdimStep, latent: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
        match self.config.prediction_type:
            case PredictionType.EPSILON:
                return (latent - step.root_beta * prediction) / step.root_alpha, prediction
            case PredictionType.V_PREDICTION:
                clean = step.root_alpha * latent - step.root_beta * prediction
                return clean, step.root_alpha * prediction + step.root_beta * latent
            case PredictionType.SAMPLE:
                return prediction, (latent - step.root_alpha * prediction) / step.root_beta

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent in its stored form."""
        return state.latent

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return a stored latent as the state before `step_index`."""
        return SamplerState(latent, step_index)


def make_ddim_schedule(config: DiffusionConfig, order: StepSequence, eta: float) -> DdimSchedule:
    """Build the schedule. Raises ValueError if the steps do not fit the training schedule, and InvalidArgument for a
    step of pure noise under epsilon prediction: the clean image cannot be computed from noise only."""
    step_count = order.step_count
    alphas = cumulative_alphas(config)
    whole = torch.from_numpy(spaced_timesteps(config, step_count).round().astype(np.int64))
    # The previous timestep of the formula is a fixed stride away, not the next sampled one: diffusers' convention.
    following = whole - config.num_train_timesteps // step_count
    last = torch.tensor(1.0) if config.set_alpha_to_one else alphas[0]
    alpha_next = torch.where(following >= 0, alphas[following.clamp(min=0)], last)[order.landings]
    timesteps = whole[order.levels]
    alpha = alphas[timesteps]
    if config.prediction_type is PredictionType.EPSILON and not alpha.all():
        reason = "divides by zero in a step of zero SNR (rescale_betas_zero_snr) where the model predicts epsilon"
        raise InvalidArgument.of("scheduler", f"must be another one for this model: ddim {reason}")
    beta = 1 - alpha
    deviation = eta * ((1 - alpha_next) / beta * (1 - alpha / alpha_next)) ** 0.5
    columns = (alpha**0.5, beta**0.5, alpha_next**0.5, (1 - alpha_next - deviation**2) ** 0.5, deviation)
    steps = tuple(DdimStep(*row) for row in torch.stack(columns, dim=1).tolist())
    sigmas = tuple((beta.double() / alpha.double()).sqrt().tolist())
    return DdimSchedule(config, timesteps, sigmas, steps, order, needs_noise=eta > 0)
