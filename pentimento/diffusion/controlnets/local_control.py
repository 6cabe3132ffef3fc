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
        return LocalControl(self._ask, controls, step_count, self._wake)

    def close(self) -> None:
        """Stop once what was asked for is done."""
        self._pool.shutdown()

    def _ask(self, compute: Callable[[], ControlResiduals]) -> "Future[ControlResiduals]":
        future = self._pool.submit(compute)
        future.add_done_callback(lambda _: self._wake())
        return future


class LocalControl:
    """The ControlSource of one picture. `wake` is called where a part of what was asked for has come."""

    def __init__(
        self,
        ask: Callable[[Callable[[], ControlResiduals]], "Future[ControlResiduals]"],
        controls: Sequence[Control],
        step_count: int,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask = ask
        self._wake = wake
        self._controls = [
            (control, control.network.embed(control.condition, control.row_count)) for control in controls
        ]
        self._step_count = step_count
        self._asked: Future[ControlResiduals] | None = None
        # Of the step that was asked for last.
        self._parts: list[ControlResiduals] = []

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Ask those that act in this step."""
        acting = [
            (control.network, ControlStep(inputs, embedded, control.setting))
            for control, embedded in self._controls
            if control.setting.acts_at(step_index, self._step_count)
        ]
        parts = self._parts = []
        self._asked = self._ask(lambda: self._residuals(acting, parts)) if acting else None

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the sum of what was asked for, as far as it is there; None before."""
        if self._asked is None:
            return NO_CONTROL
        if self._asked.done():
            return self._asked.result()
        return self._parts[-1] if self._parts else None

    def _residuals(
        self, acting: Sequence[tuple[ControlNet, ControlStep]], parts: list[ControlResiduals]
    ) -> ControlResiduals:
        """One ControlNet after the other: the sum has parts while the last one computes."""

        def tell(so_far: list[ControlResiduals]) -> None:
            parts.append(summed([*found, *so_far]))
            self._wake()

        with torch.inference_mode():
            found = [network.residuals([step])[0] for network, step in acting[:-1]]
            network, step = acting[-1]
            return summed([*found, *network.residuals([step], tell)])
