"""Define the sources of a request's inputs during denoising: residuals, LoRAs, the other half of its guidance."""

from typing import Protocol

from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from pentimento.diffusion.loras.lora import AdapterSet


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
