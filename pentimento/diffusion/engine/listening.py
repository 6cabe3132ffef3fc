"""What the engine is asked and what it tells: tickets, news of one painting, news of the batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import PentimentoError


@dataclass(frozen=True)
class FinishedPainting:
    """The final latent (1, channels, height, width), ready for the decoder, and what it took; times are seconds.

    `device_s` is the picture's share of the steps it was in, by rows, and its preparation: over all pictures these add
    up to the time that the device was busy.
    """

    latent: Tensor
    first_step: int
    step_count: int
    prompt_truncated: bool
    queued_at: float
    started_at: float
    prepared_at: float
    finished_at: float
    device_s: float


class PaintingListener(Protocol):
    """Hears of one painting, from the engine's thread; must not block. Ends with `finished` or `failed`, once."""

    def started(self, first_step: int, step_count: int) -> None: ...

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """`step` steps are done; the predicted clean latent comes along when a preview is due."""
        ...

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        """A copy of the latent before `step`, at unit variance."""
        ...

    def finished(self, painting: FinishedPainting) -> None: ...

    def failed(self, error: PentimentoError) -> None: ...


@dataclass(eq=False)
class PaintingTicket:
    """A submitted request. `stop` may be called from any thread; the first error given is the one reported."""

    request: PaintingRequest
    listener: PaintingListener
    queued_at: float
    wake: Callable[[], None] = field(default=lambda: None, repr=False)
    stop_error: PentimentoError | None = None

    def stop(self, error: PentimentoError) -> None:
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
    """Hears of the engine as a whole, from its thread; must not block."""

    def admitted(self, waited_s: float) -> None:
        """A request left the queue."""
        ...

    def ran(self, report: BatchReport) -> None: ...

    def preempted(self, request_count: int) -> None:
        """Requests that had begun, and could have gone on, gave way to more urgent ones."""
        ...

    def ran_out_of_memory(self, request_count: int) -> None:
        """The device had no memory for a forward pass of that many requests."""
        ...


class SilentObserver:
    """Nobody listens."""

    def admitted(self, waited_s: float) -> None:
        pass

    def ran(self, report: BatchReport) -> None:
        pass

    def preempted(self, request_count: int) -> None:
        pass

    def ran_out_of_memory(self, request_count: int) -> None:
        pass
