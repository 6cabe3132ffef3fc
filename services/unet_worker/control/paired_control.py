"""Supply residuals for a request that two workers share, on its main worker: for the conditional row while the pair
lasts, for both rows afterwards."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from services.unet_worker.control.remote_control import RemoteControl, RemoteControlNet


def of_row(controlnets: Sequence[RemoteControlNet], row: int) -> tuple[RemoteControlNet, ...]:
    """Return the ControlNets of a guided request for one row: 0 for the unconditional one, 1 for the conditional
    one."""
    return tuple(
        controlnet if controlnet.encoded is None else replace(controlnet, encoded=controlnet.encoded[row : row + 1])
        for controlnet in controlnets
    )


class PairedControl:
    """Supply residuals as a `ControlSource`. A stream serves the rows that it was opened with, so the conditional row
    and both rows have separate streams; the first step with both rows ends the former. Create and close it on the event
    loop."""

    def __init__(self, conditional: RemoteControl, whole: RemoteControl) -> None:
        self._conditional = conditional
        self._whole = whole
        self._asked = conditional
        self._loop = asyncio.get_running_loop()

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Request the residuals of a step for the given rows. From the first step with both rows on, both are
        requested."""
        if self._asked is self._conditional and inputs.latents.shape[0] > 1:
            self._asked = self._whole
            # First: these streams may hold the only free places of their replicas.
            self._loop.call_soon_threadsafe(self._conditional.close)
        self._asked.ask(step_index, inputs)

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the requested residuals, as `RemoteControl.take` does."""
        return self._asked.take(step_index)

    def synchronous_steps(self) -> set[int]:
        """Return the steps that use their own residuals, among those requested with both rows."""
        return self._whole.synchronous_steps()

    def close(self) -> None:
        """End the streams. Harmless twice."""
        self._conditional.close()
        self._whole.close()
