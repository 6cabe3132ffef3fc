"""Compute one guidance half of another worker's request on this engine (Katz, section 7: latent parallelism).

The engine treats it as an unguided request of one row with a sampler that does nothing: `AskedSteps` passes the other
worker's latents to the network, and returns the predictions. So it shares forward passes with this worker's unguided
requests and with other halves.
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
    """Hold a requested step: latents (1, channels, height, width) scaled by their sampler."""

    step_index: int
    timestep: float
    latent: Tensor


class AskedSteps:
    """Implement `Schedule` for steps that another worker samples. `answer` is called on the engine's thread with the
    step and the network's prediction (1, channels, height, width), which it may keep."""

    needs_noise = False
    scheduler = Scheduler.DDIM

    def __init__(self, step_count: int, answer: Callable[[int, Tensor], None]) -> None:
        self.step_count = step_count
        self.order = StepSequence(step_count)
        self.timesteps = torch.zeros(step_count)
        # Infinite, because the levels are unknown here: the row then gets the same bits in any batch as alone.
        self.sigmas = (math.inf,) * step_count
        self.asked: AskedStep | None = None
        self._answer = answer

    def ask(self, step: AskedStep) -> None:
        """Set the engine's next step, on any thread, one at a time; the caller wakes the engine."""
        self.timesteps[step.step_index] = step.timestep
        self.asked = step

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return `noise`: the other worker sends the first latents too."""
        return noise

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return `clean`: the other worker adds noise."""
        return clean

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the received latents into every row of `out`."""
        out.copy_(state.latent.expand_as(out))

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Answer with the prediction; the next call of `ask` sets the next step."""
        self.asked = None
        self._answer(state.step_index, prediction)
        return SamplerState(state.latent, state.step_index + 1), state.latent

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent unchanged: it is never stored."""
        return state.latent

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return the latent as the state before `step_index`."""
        return SamplerState(latent, step_index)


@dataclass(frozen=True)
class HalfStart:
    """Start a half: the conditioning of its one row, without `projected`, and its steps, from the first requested
    one."""

    conditioning: Conditioning
    steps: AskedSteps
    first_step: int = 0
