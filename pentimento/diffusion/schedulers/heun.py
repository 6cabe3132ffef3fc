"""Sample with Heun's method on the probability-flow ODE (Karras et al. 2022, algorithm 1, without churn), as in
k-diffusion and diffusers.

A step of the engine is one pass of the network. A level takes two: Euler's to the next level, and one there that
corrects it; the last level takes one. So diffusers' n steps are 2n - 1 here. With an even number of steps the first
level takes one pass too.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig
from pentimento.diffusion.schedulers.euler import EulerSchedule, euler_steps, initial_scale, noise_levels
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence, first_pass, level_count
from pentimento.domain.errors import InvalidArgument


@dataclass(frozen=True)
class HeunSchedule(EulerSchedule):
    """Take the passes of Heun's method. In a state before a correcting pass, `earlier` holds the derivative and the
    latent of the pass before."""

    correcting: frozenset[int]

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the state after one pass and the predicted clean latent."""
        index = state.step_index
        if index in self.correcting and not state.earlier:
            index += 1  # a start at this level: nothing to correct
        step, latent = self.steps[index], state.latent.float()
        clean = self._clean(step, latent, prediction)
        if self.config.clip_sample:
            clean = clean.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)
        derivative = (latent - clean) / step.sigma
        if index in self.correcting:
            before, latent = state.earlier
            derivative = (before + derivative) / 2
        following = latent + derivative * step.difference
        earlier = (derivative, latent) if index + 1 in self.correcting else ()
        return SamplerState(following.to(prediction.dtype), index + 1, earlier), clean


def make_heun_schedule(config: DiffusionConfig, order: StepSequence) -> HeunSchedule:
    """Build the schedule. Raises ValueError if the steps do not fit the training schedule, and InvalidArgument for
    thinned steps or a bridge: they would part the passes of a level."""
    if order.thinned or order.bridge:
        raise InvalidArgument.of("thinned_steps", f"must be empty with scheduler {config.scheduler.value}")
    count = order.step_count
    timesteps, sigmas = noise_levels(config, level_count(count))
    first = {first_pass(level, count): level for level in range(level_count(count))}
    correcting = frozenset(range(count)) - first.keys()
    places = torch.tensor([first.get(index, first.get(index + 1, 0)) for index in range(count)])
    levels = sigmas[places]
    steps = euler_steps(levels, sigmas[places + 1], is_ancestral=False)
    steps = tuple(
        replace(step, difference=steps[index - 1].difference) if index in correcting else step
        for index, step in enumerate(steps)
    )
    return HeunSchedule(
        timesteps[places], tuple(levels.tolist()), order, config, steps, initial_scale(config, sigmas), correcting
    )
