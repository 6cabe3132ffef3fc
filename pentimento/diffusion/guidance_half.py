"""Compute one guidance half of another worker's request on this engine (Katz, section 7: latent parallelism).

The engine treats it as an unguided request of one row with a sampler that does nothing: `AskedSteps` passes the other
worker's latents to the network, and returns the predictions. So it shares forward passes with this worker's unguided
requests and with other halves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pentimento.diffusion.families.model import Conditioning
from pentimento.diffusion.schedulers import DiffusionConfig, SamplerState, Schedule, StepSequence
from pentimento.domain.generation import Scheduler

# A scheduler of diffusion models: the other worker has its own.
_OF_ANOTHER = DiffusionConfig(Scheduler.DDIM)


@dataclass(frozen=True)
class AskedStep:
    """Hold a requested step: latents (1, channels, height, width) scaled by their sampler."""

    step_index: int
    timestep: float
    latent: Tensor


@dataclass(frozen=True)
class AskedSteps(Schedule):
    """Hold steps that another worker samples. `answer` is called on the engine's thread with the step and the network's
    prediction (1, channels, height, width), which it may keep."""

    answer: Callable[[int, Tensor], None]
    _asked: list[AskedStep] = field(default_factory=list)

    @staticmethod
    def of(step_count: int, answer: Callable[[int, Tensor], None]) -> "AskedSteps":
        """Return the steps of a schedule. Their levels are unknown here, and stated as infinite: the row then gets the
        same bits in any batch as alone."""
        levels = (math.inf,) * step_count
        return AskedSteps(torch.zeros(step_count), levels, StepSequence(step_count), _OF_ANOTHER, answer)

    @property
    def asked(self) -> AskedStep | None:
        """Return the step that waits for its prediction."""
        return next(iter(self._asked[-1:]), None)

    def ask(self, step: AskedStep) -> None:
        """Set the engine's next step, on any thread, one at a time; the caller wakes the engine."""
        self.timesteps[step.step_index] = step.timestep
        self._asked.append(step)

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return `clean`: the other worker adds noise."""
        return clean

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Answer with the prediction; the next call of `ask` sets the next step."""
        self._asked.clear()
        self.answer(state.step_index, prediction)
        return SamplerState(state.latent, state.step_index + 1), state.latent


@dataclass(frozen=True)
class HalfStart:
    """Start a half: the conditioning of its one row, without `projected`, and its steps, from the first requested
    one."""

    conditioning: Conditioning
    steps: AskedSteps
    first_step: int = 0
