"""Stream the answers to a request's steps from one of several other processes, across their failures."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pentimento.clients.step_stream import StepStream
from pentimento.domain.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from services.unet_worker import metrics
from services.unet_worker.remote.replicas import StreamPlace

logger = logging.getLogger(__name__)

# Full replicas are tried again at this interval.
FULL_WAIT_S = 0.1
# Errors after which another replica may succeed.
REPLICA_ERRORS = (Unavailable, Aborted, Internal, DeadlineExceeded, NotFound, FailedPrecondition)


@dataclass(frozen=True)
class Patience:
    """Limit the tries of a stream: `replays` of the same open steps on other replicas, or on the same one if there is
    no other, and `full_tries` of openings while every replica is full. `ended` makes the request's error of the last
    one."""

    replays: int
    full_tries: int
    open_timeout_s: float
    ended: Callable[[PentimentoError], PentimentoError]


class _Step(NamedTuple):
    step_index: int
    timestep: float
    latents: OutgoingTensor
    keeps_from: int


class ReplayedStream:
    """Request steps in order; a step may be requested before the previous one is answered. `ask` and `take` never
    block, on any thread; `wake` is called when `take` may return more. All other methods only on the event loop.

    A replica that is lost or answers nonsense costs a replay of its open steps on another replica, under a new epoch,
    which tells the answers of the two replicas apart.
    """

    def __init__(self, place: StreamPlace[Any], patience: Patience, wake: Callable[[], None]) -> None:
        self._place = place
        self._patience = patience
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        # The request's context, with its trace; the engine's thread has none.
        self._context = contextvars.copy_context()
        self._epoch = 0
        # Held for the fields up to `_error`.
        self._held = threading.Lock()
        self._stream: StepStream | None = None
        # The steps with answers that may still be taken, in order, and whole answers of lost replicas.
        self._steps: list[_Step] = []
        self._saved: dict[int, ReceivedTensors] = {}
        self._error: BaseException | None = None
        self._asked = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, request: Any) -> None:
        """Open the stream, with the request of the other end's client; on any thread."""
        self._loop.call_soon_threadsafe(self._run, request, context=self._context)

    def ask(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> threading.Event | None:
        """Request a step; answers to steps before `keeps_from` become invalid. Return an event that is set once the
        step has left; None if a replica must be found first."""
        step = _Step(step_index, timestep, latents, keeps_from)
        with self._held:
            self._steps = [*(one for one in self._steps if keeps_from <= one.step_index < step_index), step]
            self._saved = {one: found for one, found in self._saved.items() if keeps_from <= one < step_index}
            if self._stream is not None:
                return self._stream.ask(*step)
        self._loop.call_soon_threadsafe(self._asked.set)
        return None

    def take(self, step_index: int) -> ReceivedTensors | None:
        """Return the part of a step's answer that has arrived, None before. Raises the error that ended the stream if
        the step is not answered: the one of `Patience.ended`, or an error of the request itself."""
        with self._held:
            found = self._found(step_index)
            if self._error is not None and (found is None or found.awaited_count):
                raise self._error
            return found

    def close(self, *, in_order: bool = True) -> None:
        """End the stream; `in_order`: no answers are in use. Harmless twice."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()
        self._drop(in_order=in_order)

    def _run(self, request: Any) -> None:
        if not self._closed:
            self._running = asyncio.create_task(self._follow(request), name="replayed-stream")
            self._running.add_done_callback(self._end)

    def _end(self, running: "asyncio.Task[None]") -> None:
        # A channel that is closed cancels its calls, and with them the task.
        closed = Cancelled("CANCELLED", "the stream was closed")
        self._error = closed if running.cancelled() else running.exception()
        self._drop(in_order=False)
        self._wake()

    async def _follow(self, request: Any) -> None:
        """Keep a stream to one replica after the other. Raises the error that ends the request's stream."""
        failures, last_step = 0, None
        while True:
            try:
                stream = await self._opened(request)
                self._use(stream)
                raise await stream.end()
            except REPLICA_ERRORS as error:
                logger.warning("a replica failed: %s", error.reason)
                self._place.failed()
                first_step = self._drop(in_order=False)
                failures = failures + 1 if first_step == last_step else 1
                last_step = first_step
                if failures > self._patience.replays:
                    raise self._patience.ended(error) from None
            if first_step is not None:
                metrics.CONTROL_REPLAYS.inc()
            while not self._steps:
                self._asked.clear()
                await self._asked.wait()

    async def _opened(self, request: Any) -> StepStream:
        tries = 0
        while True:
            self._epoch += 1
            try:
                client = await self._place.take()
                stream: StepStream = await client.open_stream(request, self._epoch, self._patience.open_timeout_s)
            except ResourceExhausted as error:
                self._place.refused()
                tries += 1
                if tries >= self._patience.full_tries:
                    raise self._patience.ended(error) from None
                await asyncio.sleep(FULL_WAIT_S)
            else:
                self._place.opened()
                return stream

    def _use(self, stream: StepStream) -> None:
        """Send the open steps by a new stream, and all later ones."""
        stream.heard = self._wake
        with self._held:
            self._stream = stream
            for step in self._steps:
                stream.ask(*step)

    def _drop(self, *, in_order: bool) -> int | None:
        """Close the stream and leave its replica; save its whole answers. Return the first step without one."""
        with self._held:
            found = {step.step_index: self._found(step.step_index) for step in self._steps}
            self._saved |= {step: one for step, one in found.items() if one is not None and not one.awaited_count}
            self._steps = [step for step in self._steps if step.step_index not in self._saved]
            stream, self._stream = self._stream, None
            first_step = self._steps[0].step_index if self._steps else None
        if stream is not None:
            stream.close(in_order=in_order)
        self._place.leave()
        return first_step

    def _found(self, step_index: int) -> ReceivedTensors | None:
        found = self._saved.get(step_index)
        return self._stream.take(step_index) if found is None and self._stream is not None else found
