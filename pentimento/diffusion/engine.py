"""The step engine: one thread owns the model and runs one denoising step at a time.

Requests wait in a queue; between any two steps the engine drops what was stopped or is too late, admits what fits, and
takes one step for each running picture. Every call to a listener comes from the engine's thread.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pentimento.diffusion.families.model import DiffusionModel
from pentimento.diffusion.painting import Painting, PaintingRequest, denoise_step, prepare
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import (
    DEVICE_OUT_OF_MEMORY,
    DeadlineExceeded,
    Internal,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedPainting:
    """The final latent (1, channels, height, width), ready for the decoder, and what it took; times are seconds."""

    latent: Tensor
    first_step: int
    step_count: int
    prompt_truncated: bool
    queued_at: float
    started_at: float
    prepared_at: float
    finished_at: float
    busy_s: float


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
    stop_error: PentimentoError | None = None

    def stop(self, error: PentimentoError) -> None:
        if self.stop_error is None:
            self.stop_error = error


@dataclass(eq=False)
class _Running:
    ticket: PaintingTicket
    painting: Painting
    started_at: float
    prepared_at: float
    busy_s: float = field(default=0.0)


class StepEngine:
    """`threads` are torch's; `max_running` pictures take turns, a step each; `observe_step` hears a step's seconds."""

    def __init__(
        self,
        model: DiffusionModel,
        *,
        threads: int = 1,
        prompt_memo_entries: int = 256,
        max_running: int = 1,
        observe_step: Callable[[float], None] = lambda seconds: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._threads = threads
        self._prompts = PromptMemo(model, prompt_memo_entries)
        self._max_running = max_running
        self._observe_step = observe_step
        self._monotonic = monotonic
        self._work = threading.Condition()
        self._waiting: deque[PaintingTicket] = deque()
        self._running: list[_Running] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="step-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: PaintingRequest, listener: PaintingListener) -> PaintingTicket:
        """Queues a request; its listener hears the rest. Raises Unavailable once the engine is closed."""
        ticket = PaintingTicket(request, listener, self._monotonic())
        with self._work:
            if self._closing:
                raise Unavailable("ENGINE_CLOSED", "the engine has stopped")
            self._waiting.append(ticket)
            self._work.notify()
        return ticket

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running)

    def close(self) -> None:
        """Stops after the step at hand; what is left fails with Unavailable."""
        with self._work:
            self._closing = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP keeps the number per thread
        with torch.inference_mode():
            while self._wait_for_work():
                self._step()
        for ticket in [*(running.ticket for running in self._running), *self._waiting]:
            _report_failure(ticket, Unavailable("ENGINE_CLOSED", "the worker stopped before the picture was done"))

    def _wait_for_work(self) -> bool:
        with self._work:
            while not (self._closing or self._running or self._waiting):
                self._work.wait()
            return not self._closing

    def _step(self) -> None:
        self._drop_stopped()
        self._admit()
        for running in list(self._running):
            self._guard(running, self._advance)

    def _drop_stopped(self) -> None:
        now = self._monotonic()
        for running in list(self._running):
            if (error := _stop_error(running.ticket, now)) is not None:
                self._retire(running)
                _report_failure(running.ticket, error)
        for ticket in list(self._waiting):
            if (error := _stop_error(ticket, now)) is not None:
                self._waiting.remove(ticket)
                _report_failure(ticket, error)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            ticket = self._waiting.popleft()
            started_at = self._monotonic()
            try:
                painting = prepare(self._model, self._prompts, ticket.request)
            except Exception as error:
                _report_failure(ticket, _as_typed(error))
                continue
            running = _Running(ticket, painting, started_at, self._monotonic())
            self._running.append(running)
            self._guard(running, self._begin)

    def _begin(self, running: _Running) -> None:
        painting = running.painting
        running.ticket.listener.started(painting.state.step_index, painting.schedule.step_count)
        self._finish_if_done(running)

    def _advance(self, running: _Running) -> None:
        painting, listener = running.painting, running.ticket.listener
        began = self._monotonic()
        denoise_step(self._model, painting)
        seconds = self._monotonic() - began
        running.busy_s += seconds
        self._observe_step(seconds)
        step = painting.state.step_index
        if step in painting.request.capture_steps and not painting.done:
            latent = painting.schedule.to_variance_preserving(painting.state).clone()
            listener.captured(step, painting.schedule.sigmas[step], latent)
        listener.stepped(step, painting.predicted_clean if _preview_due(painting) else None)
        self._finish_if_done(running)

    def _finish_if_done(self, running: _Running) -> None:
        if not running.painting.done:
            return
        self._retire(running)
        running.ticket.listener.finished(self._finished(running))

    def _finished(self, running: _Running) -> FinishedPainting:
        painting = running.painting
        return FinishedPainting(
            latent=painting.state.latent,
            first_step=painting.request.start.first_step,
            step_count=painting.schedule.step_count,
            prompt_truncated=painting.prompt_truncated,
            queued_at=running.ticket.queued_at,
            started_at=running.started_at,
            prepared_at=running.prepared_at,
            finished_at=self._monotonic(),
            busy_s=running.busy_s + running.prepared_at - running.started_at,
        )

    def _retire(self, running: _Running) -> None:
        self._running.remove(running)

    def _guard(self, running: _Running, act: Callable[[_Running], None]) -> None:
        """An exception in one picture's step ends that picture, never the loop."""
        try:
            act(running)
        except Exception as error:
            if running in self._running:
                self._retire(running)
                _report_failure(running.ticket, _as_typed(error))


def _report_failure(ticket: PaintingTicket, error: PentimentoError) -> None:
    """A listener that raises (its event loop may be gone) does not take the engine's thread along."""
    try:
        ticket.listener.failed(error)
    except Exception as raised:
        logger.error("a listener raised %s", type(raised).__name__)


def _stop_error(ticket: PaintingTicket, now: float) -> PentimentoError | None:
    deadline = ticket.request.deadline
    if ticket.stop_error is None and deadline is not None and now >= deadline:
        return DeadlineExceeded("DEADLINE_EXCEEDED", "the deadline passed before the picture was done")
    return ticket.stop_error


def _preview_due(painting: Painting) -> bool:
    interval = painting.request.preview_interval_steps
    return interval > 0 and not painting.done and painting.state.step_index % interval == 0


def _as_typed(error: Exception) -> PentimentoError:
    if isinstance(error, PentimentoError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return ResourceExhausted(DEVICE_OUT_OF_MEMORY, "the picture does not fit the device's memory")
    # The class only: messages of libraries may quote their input, and prompts never reach a log.
    logger.error("a denoising step raised %s", type(error).__name__)
    return Internal("STEP_FAILED", f"a denoising step raised {type(error).__name__}")
