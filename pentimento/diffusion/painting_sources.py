"""What one picture takes from elsewhere while it is painted: residuals, LoRAs, the other half of its guidance."""

from typing import Protocol

from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from pentimento.diffusion.loras.lora import AdapterSet


class ControlSource(Protocol):
    """Where the ControlNet residuals of one picture come from (Katz). Called on the engine's thread; must not block.

    At each step the engine asks and takes; where nothing is there yet it runs the network's first half and takes again.
    A picture whose residuals are late then sits out ticks until they are there."""

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Ask for the residuals of a step: what the network will see, this picture's rows alone. Called once before
        each step, and again with both rows of a guided picture where a peer was to compute one and did not: from then
        on both are asked for."""
        ...

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the residuals for what was asked, by rows, of all ControlNets together; NO_CONTROL for a step outside
        their share of the schedule; None while they are under way. Of a transformer's it may return those of the first
        blocks, and say how many are still to come. What it raises ends the picture. Whoever has more of them wakes the
        engine. Called again and again until it returns all."""
        ...


class LoraSource(Protocol):
    """Where the LoRAs of one picture come from (Katz, section 6: bounded asynchronous loading). Called on the engine's
    thread; must not block.

    The engine asks before each step until they are there. The picture goes on without them meanwhile, but not into
    `latest_step`, before which it waits."""

    @property
    def latest_step(self) -> int:
        """The first step that must not be taken without them: 0 where they act from the start."""
        ...

    def take(self, step_index: int) -> AdapterSet | None:
        """Return them before the step `step_index`, None while they are under way. What it raises ends the picture.
        Whoever completes them wakes the engine."""
        ...


class GuidancePeer(Protocol):
    """Who computes the unconditional half of one picture's guidance elsewhere (Katz, section 7: latent parallelism).
    Called on the engine's thread; must not block."""

    def ask(self, step_index: int, inputs: DenoiserInput) -> bool:
        """Ask for the prediction of a step's unconditional row, which `inputs` holds alone. False where it cannot be
        asked now: it is still at an earlier step, or lost."""
        ...

    def take(self, step_index: int) -> Tensor | None:
        """Return the prediction (1, channels, height, width) for what was asked, None while it is under way. What it
        raises means that it will not come. Whoever completes it wakes the engine."""
        ...

    def leave(self) -> None:
        """Ask nothing of it any more, nor take anything: what it holds for the picture is free."""
        ...
