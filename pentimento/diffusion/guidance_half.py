"""One half of another worker's picture (Katz, section 7: latent parallelism), for the step engine to compute.

To the engine it is a painting of one row without guidance whose sampler samples nothing: `AskedSteps` hands the network
what the other worker sends, and hands back what the network makes of it. So it shares forward passes with the worker's
own unguided pictures and with other halves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pentimento.diffusion.families.model import Conditioning
from pentimento.diffusion.schedulers import SamplerState, StepSequence
from pentimento.domain.generation import Scheduler


@dataclass(frozen=True)
class AskedStep:
    """A step that is asked for: latents (1, channels, height, width) scaled by their sampler."""

    step_index: int
    timestep: float
    latent: Tensor


class AskedSteps:
    """A `Schedule` of steps that somebody else samples. `answer` is called on the engine's thread with the step and the
    network's prediction (1, channels, height, width), which it may keep."""

    needs_noise = False
    scheduler = Scheduler.DDIM

    def __init__(self, step_count: int, answer: Callable[[int, Tensor], None]) -> None:
        self.step_count = step_count
        self.order = StepSequence(step_count)
        self.timesteps = torch.zeros(step_count)
        # Whoever shares the batch, its rows are to have the bits that they have alone: no level is known here.
        self.sigmas = (math.inf,) * step_count
        self.asked: AskedStep | None = None
        self._answer = answer

    def ask(self, step: AskedStep) -> None:
        """Give the engine the next step, on any thread; it has to be woken. One at a time."""
        self.timesteps[step.step_index] = step.timestep
        self.asked = step

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return `noise`: what comes first is asked for like the rest."""
        return noise

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return `clean`: noise is the other worker's business."""
        return clean

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the latents as they were sent into every row of `out`."""
        out.copy_(state.latent.expand_as(out))

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Answer with the prediction; the next step is the one that is asked for next."""
        self.asked = None
        self._answer(state.step_index, prediction)
        return SamplerState(state.latent, state.step_index + 1), state.latent

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent as is: nothing of it is kept."""
        return state.latent

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return the latent as the state before `step_index`."""
        return SamplerState(latent, step_index)


@dataclass(frozen=True)
class HalfStart:
    """The start of a half: what its one row is conditioned on, without `projected`, and its steps, which begin with the
    first that is asked for."""

    conditioning: Conditioning
    steps: AskedSteps
    first_step: int = 0
