"""What the engine is asked and what it tells: tickets, news of one painting, news of the batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import PentimentoError


@dataclass(frozen=True)
class FinishedPainting:
    """The final latent (1, channels, height, width), ready for the decoder, and what it took; times are seconds.

    `residual_waits_s` are the seconds that steps waited for residuals behind their first half, by step; others did not.
    `paired_step_count` steps were taken with a peer's half. `device_s` is the picture's share of the steps it was in,
    by rows, and its preparation: over all pictures these add up to the time that the device was busy. `taken_count`
    steps were taken; where that are not all, `thinned_steps` are those from the first that was thinned on.
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
    """Who is told of one painting, on the engine's thread; must not block. It ends with `finished` or `failed`,
    once."""

    def started(self, first_step: int, step_count: int) -> None:
        """Take note that the painting has begun; `step_count` steps lie before its end."""
        ...

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """Take note that `step` steps are done; the predicted clean latent comes along when a preview is due."""
        ...

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        """Take a copy of the latent before `step`, at unit variance."""
        ...

    def finished(self, painting: FinishedPainting) -> None:
        """Take the finished painting."""
        ...

    def failed(self, error: PentimentoError) -> None:
        """Take the error that ended the painting."""
        ...


class SilentListener:
    """A listener that ignores everything; one that wants some of it says so for that alone."""

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
    """A submitted request. `stop` and `thin` may be called from any thread; the first error given is the one
    reported."""

    request: PaintingRequest
    listener: PaintingListener
    queued_at: float
    wake: Callable[[], None] = field(default=lambda: None, repr=False)
    stop_error: PentimentoError | None = None
    # What the engine has not taken note of yet.
    asked_steps: tuple[int, ...] = ()

    def thin(self, steps: tuple[int, ...]) -> None:
        """Ask that from `steps[0]` on the painting takes these steps alone. It does not where it has passed that one by
        then, or was thinned before; `FinishedPainting` says what it took."""
        self.asked_steps = steps
        self.wake()

    def stop(self, error: PentimentoError) -> None:
        """End the painting with `error` at the next step."""
        if self.stop_error is None:
            self.stop_error = error
            self.wake()


@dataclass(frozen=True)
class BatchReport:
    """One forward pass and what followed it: requests in it, rows computed (padding included), seconds."""

    request_count: int
    row_count: int
    seconds: float


class EngineObserver(Protocol):
    """Who is told of the engine as a whole, on its thread; must not block."""

    def admitted(self, waited_s: float) -> None:
        """Take note that a request left the queue after `waited_s`."""
        ...

    def ran(self, report: BatchReport) -> None:
        """Take the report of a batch."""
        ...

    def preempted(self, request_count: int) -> None:
        """Take note that so many requests, which had begun and could have gone on, were left out for more urgent
        ones."""
        ...

    def ran_out_of_memory(self, request_count: int) -> None:
        """Take note that the device had no memory for a forward pass of that many requests."""
        ...


class SilentObserver:
    """An observer that ignores everything."""

    def admitted(self, waited_s: float) -> None:
        """Ignore it."""

    def ran(self, report: BatchReport) -> None:
        """Ignore it."""

    def preempted(self, request_count: int) -> None:
        """Ignore it."""

    def ran_out_of_memory(self, request_count: int) -> None:
        """Ignore it."""
