"""Define the engine's interface: request tickets, listeners of one request, observers of the batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import PentimentoError


@dataclass(frozen=True)
class FinishedPainting:
    """Hold the final latent (1, channels, height, width), ready for the decoder, and its costs; times are seconds.

    `residual_waits_s` maps steps to the seconds they waited for residuals after their first half; other steps did not
    wait. `paired_step_count` steps used a peer's half. `device_s` is the request's share of its steps, by rows, plus
    its preparation: over all requests these add up to the busy time of the device. `taken_count` steps were taken; if
    steps were skipped, `thinned_steps` lists the steps taken from the first thinned one on.
    """

    latent: Tensor
    first_step: int
    step_count: int
    taken_count: int
    prompt_truncated: bool
    queued_at: float
    started_at: float
    prepared_at: float
    finished_at: float
    device_s: float
    lora_patch_step: int | None = None
    residual_waits_s: Mapping[int, float] = field(default_factory=dict)
    paired_step_count: int = 0
    thinned_steps: tuple[int, ...] = ()


class PaintingListener(Protocol):
    """Receive the events of one request, on the engine's thread; must not block. The last event is one `finished` or
    `failed`."""

    def started(self, first_step: int, step_count: int) -> None:
        """Handle the start of denoising at `first_step` of `step_count` steps."""
        ...

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """Handle the end of a step: `step` steps are done; `predicted_clean` is given when a preview is due."""
        ...

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        """Receive a copy of the latent before `step`, at unit variance."""
        ...

    def finished(self, painting: FinishedPainting) -> None:
        """Receive the final latent and its costs."""
        ...

    def failed(self, error: PentimentoError) -> None:
        """Receive the error that ended the request."""
        ...


class SilentListener:
    """Ignore all events; a subclass overrides the ones it needs."""

    def started(self, first_step: int, step_count: int) -> None:
        """Ignore it."""

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """Ignore it."""

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        """Ignore it."""

    def finished(self, painting: FinishedPainting) -> None:
        """Ignore it."""

    def failed(self, error: PentimentoError) -> None:
        """Ignore it."""


@dataclass(eq=False)
class PaintingTicket:
    """Hold a submitted request. Any thread may call `stop` and `thin`; the first error given is reported."""

    request: PaintingRequest
    listener: PaintingListener
    queued_at: float
    wake: Callable[[], None] = field(default=lambda: None, repr=False)
    stop_error: PentimentoError | None = None
    # Steps from `thin` that the engine has not handled yet.
    asked_steps: tuple[int, ...] = ()

    def thin(self, steps: tuple[int, ...]) -> None:
        """Request that only these steps are taken from `steps[0]` on. Ignored if the request has passed `steps[0]` or
        was thinned before; `FinishedPainting` reports the steps taken."""
        self.asked_steps = steps
        self.wake()

    def stop(self, error: PentimentoError) -> None:
        """End the request with `error` at the next step."""
        if self.stop_error is None:
            self.stop_error = error
            self.wake()


@dataclass(frozen=True)
class BatchReport:
    """Report one forward pass and its sampler steps: requests, rows computed (padding included), seconds."""

    request_count: int
    row_count: int
    seconds: float


class EngineObserver(Protocol):
    """Receive events of the whole engine, on its thread; must not block."""

    def admitted(self, waited_s: float) -> None:
        """Handle a request that left the queue after `waited_s`."""
        ...

    def ran(self, report: BatchReport) -> None:
        """Receive the report of a batch."""
        ...

    def preempted(self, request_count: int) -> None:
        """Handle the preemption of `request_count` ready requests by more urgent ones."""
        ...

    def ran_out_of_memory(self, request_count: int) -> None:
        """Handle a forward pass of `request_count` requests that the device had no memory for."""
        ...


class SilentObserver:
    """Ignore all events."""

    def admitted(self, waited_s: float) -> None:
        """Ignore it."""

    def ran(self, report: BatchReport) -> None:
        """Ignore it."""

    def preempted(self, request_count: int) -> None:
        """Ignore it."""

    def ran_out_of_memory(self, request_count: int) -> None:
        """Ignore it."""
