"""Sample distilled models in a few steps: latent consistency models (LCM, Luo et al. 2023) and trajectory consistency
distillation (TCD, Zheng et al. 2024). Each step predicts the image and adds fresh noise for the next level.

Timesteps are a subset of the `original_inference_steps` that the model was distilled at.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig
from pentimento.diffusion.schedulers.noise import cumulative_alphas
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.diffusion.schedulers.unit_variance import UnitVarianceSchedule, check_levels
from pentimento.domain.generation import Scheduler

# The standard deviation of images in LCM's boundary condition.
_IMAGE_DEVIATION = 0.5


@dataclass(frozen=True)
class ConsistencyStep:
    """Hold the scalars of one step: its level; the weights of clean latent, of predicted noise and of the latent itself
    in the image that the step predicts; and those of this image and fresh noise in the next latent."""

    alpha: float
    sigma: float
    clean_weight: float
    noise_weight: float
    latent_weight: float
    image_weight: float
    noise_deviation: float


@dataclass(frozen=True)
class ConsistencySchedule(UnitVarianceSchedule[ConsistencyStep]):
    """Take the steps of LCM or TCD."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent; the last step adds no noise."""
        step = self.steps[state.step_index]
        clean = self._clean(step, state.latent, prediction)
        if self.scheduler is Scheduler.LCM:
            if self.config.clip_sample:
                clean = clean.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)
            image = clean = step.clean_weight * clean + step.latent_weight * state.latent
        else:
            image = step.clean_weight * clean + step.noise_weight * self._noise(step, state.latent, prediction)
        after = self.order.after(state.step_index)
        if noise is not None and after < self.step_count:
            image = step.image_weight * image + step.noise_deviation * noise
        return SamplerState(image, after), clean


def make_consistency_schedule(config: DiffusionConfig, order: StepSequence, eta: float = 0.0) -> ConsistencySchedule:
    """Build the schedule; `eta` is TCD's gamma, its share of fresh noise. Raises ValueError for more steps than the
    model was distilled at, and InvalidArgument for a step of pure noise under epsilon prediction."""
    alphas = cumulative_alphas(config)
    whole = _timesteps(config, order.step_count)
    is_lcm = config.scheduler is Scheduler.LCM
    # diffusers' LCM ends at the last step's own level, unused; its TCD at timestep 0.
    following = torch.cat([whole[1:], whole[-1:] if is_lcm else torch.zeros(1, dtype=torch.long)])[order.landings]
    timesteps = whole[order.levels]
    alpha, alpha_next = alphas[timesteps], alphas[following]
    check_levels(config, alpha)
    nothing = torch.zeros_like(alpha)
    if is_lcm:
        scaled = timesteps * config.timestep_scaling
        spread = scaled**2 + _IMAGE_DEVIATION**2
        columns = (scaled / spread**0.5, nothing, _IMAGE_DEVIATION**2 / spread)
        last = (alpha_next**0.5, (1 - alpha_next) ** 0.5)
    else:
        alpha_image = alphas[torch.floor((1 - eta) * following).to(torch.long)]
        columns = (alpha_image**0.5, (1 - alpha_image) ** 0.5, nothing)
        last = ((alpha_next / alpha_image) ** 0.5, (1 - alpha_next / alpha_image) ** 0.5)
    rows = torch.stack((alpha**0.5, (1 - alpha) ** 0.5, *columns, *last), dim=1).tolist()
    steps = tuple(ConsistencyStep(*row) for row in rows)
    sigmas = tuple(((1 - alpha).double() / alpha.double()).sqrt().tolist())
    return ConsistencySchedule(timesteps, sigmas, order, config, steps, needs_noise=is_lcm or eta > 0)


def _timesteps(config: DiffusionConfig, step_count: int) -> Tensor:
    count = config.original_inference_steps
    if step_count > count:
        raise ValueError(f"{step_count} steps do not fit the {count} that the model was distilled at")
    distilled = np.arange(1, count + 1) * (config.num_train_timesteps // count) - 1
    chosen = np.floor(np.linspace(0, count, num=step_count, endpoint=False)).astype(np.int64)
    return torch.from_numpy(distilled[::-1].copy()[chosen])
