"""Sample with DDIM (Song et al. 2021), equations 12 and 16. Coefficients are computed once; a step is a few operations
in diffusers' order, so that the results are equal bit for bit."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig
from pentimento.diffusion.schedulers.noise import cumulative_alphas, spaced_timesteps
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.diffusion.schedulers.unit_variance import UnitVarianceSchedule, check_levels


@dataclass(frozen=True)
class DdimStep:
    """Hold the scalars of one step: its level, and those of the next latent from clean latent and noise."""

    alpha: float
    sigma: float
    root_alpha_next: float
    direction: float
    noise_deviation: float


@dataclass(frozen=True)
class DdimSchedule(UnitVarianceSchedule[DdimStep]):
    """Take the steps of DDIM (Song et al. 2021)."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step = self.steps[state.step_index]
        clean = self._clean(step, state.latent, prediction)
        epsilon = self._noise(step, state.latent, prediction)
        if self.config.clip_sample:
            clean = clean.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)
        latent = step.root_alpha_next * clean + step.direction * epsilon
        if noise is not None:
            latent = latent + step.noise_deviation * noise
        return SamplerState(latent, self.order.after(state.step_index)), clean


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
    check_levels(config, alpha)
    beta = 1 - alpha
    deviation = eta * ((1 - alpha_next) / beta * (1 - alpha / alpha_next)) ** 0.5
    columns = (alpha**0.5, beta**0.5, alpha_next**0.5, (1 - alpha_next - deviation**2) ** 0.5, deviation)
    steps = tuple(DdimStep(*row) for row in torch.stack(columns, dim=1).tolist())
    sigmas = tuple((beta.double() / alpha.double()).sqrt().tolist())
    return DdimSchedule(timesteps, sigmas, order, config, steps, needs_noise=eta > 0)
