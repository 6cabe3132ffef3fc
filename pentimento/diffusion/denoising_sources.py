"""Define the sources of a request's inputs during denoising: residuals, LoRAs, the other half of its guidance; and
compute one half of another worker's request on this engine (Katz, section 7: latent parallelism).

The engine treats a half as an unguided request of one row with a sampler that does nothing: `AskedSteps` passes the
other worker's latents to the network, and returns the predictions. So it shares forward passes with this worker's
unguided requests and with other halves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pentimento.diffusion.families.model import Conditioning, ControlResiduals, DenoiserInput
from pentimento.diffusion.loras.lora import AdapterSet
from pentimento.diffusion.schedulers import DiffusionConfig, SamplerState, Schedule, StepSequence
from pentimento.domain.generation import Scheduler


class ControlSource(Protocol):
    """Provide the ControlNet residuals of one request (Katz). Called on the engine's thread; must not block.

    At each step the engine calls `ask` and `take`; if nothing has arrived, it runs the network's first half and calls
    `take` again. A request with late residuals then skips ticks until they arrive."""

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Request the residuals of a step; `inputs` are the network's inputs, only this request's rows. Called once
        before each step, and again with both rows of a guided request if its peer did not compute one: from then on
        always with both."""

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the requested residuals, by rows, summed over all ControlNets; NO_CONTROL for a step outside their
        part of the schedule; None while they are in flight. For a transformer it may return the first blocks' residuals
        and the number still awaited. An exception ends the request. The source wakes the engine when more arrive.
        Called repeatedly until all have arrived."""


class LoraSource(Protocol):
    """Provide the LoRAs of one request (Katz, section 6: bounded asynchronous loading). Called on the engine's thread;
    must not block.

    The engine calls `take` before each step until they arrive. The request continues without them, but waits for them
    before `latest_step`."""

    @property
    def latest_step(self) -> int:
        """Return the first step that must not be taken without the LoRAs: 0 if they act from the start."""

    def take(self, step_index: int) -> AdapterSet | None:
        """Return the LoRAs before the step `step_index`, None while they are loading. An exception ends the request.
        The source wakes the engine once they are loaded."""


class GuidancePeer(Protocol):
    """Compute the unconditional half of one request's guidance on another worker (Katz, section 7: latent parallelism).
    Called on the engine's thread; must not block."""

    def ask(self, step_index: int, inputs: DenoiserInput) -> bool:
        """Request the prediction of a step's unconditional row, the only row of `inputs`. Return False if the peer
        cannot take it now: it is still at an earlier step, or lost."""

    def take(self, step_index: int) -> Tensor | None:
        """Return the requested prediction (1, channels, height, width), None while it is in flight. An exception means
        that it will not arrive. The peer wakes the engine once it has arrived."""

    def leave(self) -> None:
        """Release the peer and all it holds for the request; `ask` and `take` are not called again."""


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
