"""Residuals of a picture that two workers paint, on the side of its own worker: of the conditional row while there is a
pair, of both rows from where there is none."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from services.unet_worker.control.remote_control import RemoteControl, RemoteControlNet


def of_row(controlnets: Sequence[RemoteControlNet], row: int) -> tuple[RemoteControlNet, ...]:
    """Return the ControlNets of a guided picture for one of its rows: 0 for the unconditional one, 1 for the other."""
    return tuple(
        controlnet if controlnet.encoded is None else replace(controlnet, encoded=controlnet.encoded[row : row + 1])
        for controlnet in controlnets
    )


class PairedControl:
    """A `ControlSource`. A stream is for the rows that it was opened with, so there are streams for the conditional row
    and streams for both; the first step that asks for both ends the former. Make it, and close it, on the event
    loop."""

    def __init__(self, conditional: RemoteControl, whole: RemoteControl) -> None:
        self._conditional = conditional
        self._whole = whole
        self._asked = conditional
        self._loop = asyncio.get_running_loop()

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Ask for the residuals of a step, of the rows that there are. Those of both are asked for from then on."""
        if self._asked is self._conditional and inputs.latents.shape[0] > 1:
            self._asked = self._whole
            # First: what these streams hold of their replicas may be all that there is.
            self._loop.call_soon_threadsafe(self._conditional.close)
        self._asked.ask(step_index, inputs)

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return what was asked for, as `RemoteControl.take` does."""
        return self._asked.take(step_index)

    def synchronous_steps(self) -> set[int]:
        """Return the steps that use residuals of their own, of those that were asked for with both rows."""
        return self._whole.synchronous_steps()

    def close(self) -> None:
        """End the streams. Harmless twice."""
        self._conditional.close()
        self._whole.close()
