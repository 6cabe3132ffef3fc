"""ControlNets in the engine's own process: what a remote source of residuals is held against.

They run on a thread of their own, beside the engine's, one forward pass at a time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pentimento.diffusion.controlnets.network import ControlNet, ControlStep
from pentimento.diffusion.controlnets.setting import ControlSetting
from pentimento.diffusion.controlnets.summing import summed
from pentimento.diffusion.families.model import NO_CONTROL, ControlResiduals, DenoiserInput


@dataclass(frozen=True)
class Control:
    """One ControlNet of a picture: its condition (1 or rows, channels, height, width), how it acts, and the rows of the
    picture that it acts on."""

    network: ControlNet
    condition: Tensor
    row_count: int = 1
    setting: ControlSetting = field(default_factory=ControlSetting)


class LocalControlNets:
    """The thread that runs ControlNets. `wake` is called there when residuals have come."""

    def __init__(self, wake: Callable[[], None], threads: int = 1) -> None:
        self._wake = wake
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="controlnets", initializer=lambda: torch.set_num_threads(threads)
        )

    def source(self, controls: Sequence[Control], step_count: int) -> "LocalControl":
        """Return the source of one picture whose schedule has so many steps. Embeds the conditions, here. Raises
        InvalidArgument."""
        return LocalControl(self._ask, controls, step_count)

    def close(self) -> None:
        """Stop once what was asked for is done."""
        self._pool.shutdown()

    def _ask(self, compute: Callable[[], ControlResiduals]) -> "Future[ControlResiduals]":
        future = self._pool.submit(compute)
        future.add_done_callback(lambda _: self._wake())
        return future


class LocalControl:
    """The ControlSource of one picture."""

    def __init__(
        self,
        ask: Callable[[Callable[[], ControlResiduals]], "Future[ControlResiduals]"],
        controls: Sequence[Control],
        step_count: int,
    ) -> None:
        self._ask = ask
        self._controls = [
            (control, control.network.embed(control.condition, control.row_count)) for control in controls
        ]
        self._step_count = step_count
        self._asked: Future[ControlResiduals] | None = None

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Ask those that act in this step."""
        acting = [
            (control.network, ControlStep(inputs, embedded, control.setting))
            for control, embedded in self._controls
            if control.setting.acts_at(step_index, self._step_count)
        ]
        self._asked = self._ask(lambda: _residuals(acting)) if acting else None

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the sum of what was asked for; None while it is computed."""
        if self._asked is None:
            return NO_CONTROL
        return self._asked.result() if self._asked.done() else None


def _residuals(acting: Sequence[tuple[ControlNet, ControlStep]]) -> ControlResiduals:
    with torch.inference_mode():
        return summed([network.residuals([step])[0] for network, step in acting])
