"""Stream residuals of one ControlNet for one request, across failures of replicas."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pentimento.clients.controlnet import ResidualStream, ResidualStreamRequest
from pentimento.domain.errors import (
    Aborted,
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
from services.unet_worker.control.replicas import StreamPlace, full, lost

logger = logging.getLogger(__name__)

# For each step: on other replicas, or on the same one if there is no other.
MAX_REPLAYS = 2
OPEN_TIMEOUT_S = 60.0
STEP_TIMEOUT_S = 30.0
# Full replicas are tried again at this interval; after the last try the request fails with a retryable error.
FULL_WAIT_S = 0.1
MAX_FULL_WAITS = 100
# Errors after which another replica may succeed.
REPLICA_ERRORS = (Unavailable, Aborted, Internal, DeadlineExceeded, NotFound, FailedPrecondition)


@dataclass(eq=False)
class _Step:
    """Hold a requested step with all data to request it again; `sent_on` is the stream that has it."""

    index: int
    timestep: float
    latents: OutgoingTensor = field(repr=False)
    keeps_from: int
    sent_on: ResidualStream | None = None


class ReplayedStream:
    """Request steps in order, on the event loop unless a method states otherwise; a step may be requested before the
    previous one is answered. `heard` is called when residuals have arrived by a line.

    A replica that is lost or answers nonsense costs a replay of its open steps on another replica, under a new epoch,
    which tells the answers of the two replicas apart.
    """

    def __init__(
        self,
        name: str,
        place: StreamPlace,
        request: ResidualStreamRequest,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._heard = heard
        self._name = name
        self._place = place
        self._request = request
        self._epoch = 0
        self._stream: ResidualStream | None = None
        self._open_steps: list[_Step] = []
        # Fair: the first caller takes, and sends, first.
        self._taking = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._closed = False

    def ask_now(
        self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int
    ) -> ResidualStream | None:
        """Send a step on the calling thread if all earlier steps are sent and a line is open; return the stream that
        has it. Its answer is found by `arrived`; if none arrives, `residuals` is called for the step."""
        stream = self._stream
        if stream is None or not stream.lined:
            return None
        try:
            stream.ask_now(step_index, timestep, latents, keeps_from)
        except PentimentoError:
            return None  # `residuals` sends it again
        return stream

    def arrived(self, step_index: int) -> ReceivedTensors | None:
        """Return a step's residuals received by a line so far; on any thread."""
        stream = self._stream
        return None if stream is None else stream.arrived(step_index)

    def will_answer(self, sent_on: ResidualStream) -> bool:
        """Return whether residuals of steps sent by that stream's line may still arrive; on any thread."""
        return self._stream is sent_on and not sent_on.failed

    async def residuals(
        self,
        step_index: int,
        timestep: float,
        latents: OutgoingTensor,
        keeps_from: int | None = None,
        sent_on: ResidualStream | None = None,
    ) -> ReceivedTensors:
        """Return a step's residuals. Those of steps before `keeps_from`, by default this step, become invalid.
        `sent_on` has the step already.

        Raises Unavailable (CONTROLNET_LOST) if replicas failed the step more than MAX_REPLAYS times, errors of the
        request itself, and ResourceExhausted (CONTROLNET_FULL) while every replica is full.
        """
        step = _Step(step_index, timestep, latents, step_index if keeps_from is None else keeps_from, sent_on)
        self._open_steps.append(step)
        try:
            if self._stream is not None and len(self._open_steps) > 1:
                await self._send_early(self._stream)
            async with self._taking:
                return await self._taken(step)
        finally:
            self._open_steps.remove(step)
            if self._closed:
                # It may have been closed before it had taken a replica, which counts its streams.
                self._place.leave()

    def close(self) -> None:
        """Close the stream. Harmless twice."""
        self._closed = True
        self._drop(in_order=not self._open_steps)

    async def _taken(self, step: _Step) -> ReceivedTensors:
        failures = 0
        while True:
            try:
                stream = await self._opened()
                async with asyncio.timeout(STEP_TIMEOUT_S):
                    await self._send_open_steps(stream)
                    return await stream.take(step.index)
            except TimeoutError:
                self._give_up(Unavailable("CONTROLNET_SILENT", "no residuals in time"))
            except REPLICA_ERRORS as error:
                self._give_up(error)
            failures += 1
            if failures > MAX_REPLAYS or self._closed:
                raise lost(self._name)
            metrics.CONTROL_REPLAYS.inc()

    async def _send_early(self, stream: ResidualStream) -> None:
        """Send the open steps early. The task that takes the step before handles the errors."""
        try:
            await self._send_open_steps(stream)
        except PentimentoError as error:
            logger.debug("a step was not sent ahead: %s", error.reason)
        except asyncio.CancelledError:
            # A stream that was dropped in between cancels its pending writes.
            if self._stream is stream or self._closed:
                raise

    async def _send_open_steps(self, stream: ResidualStream) -> None:
        async with self._sending:
            for step in [step for step in self._open_steps if step.sent_on is not stream]:
                step.sent_on = stream
                await stream.ask(step.index, step.timestep, step.latents, step.keeps_from)

    async def _opened(self) -> ResidualStream:
        refusal = ""
        for _ in range(MAX_FULL_WAITS):
            if self._stream is not None:
                return self._stream
            try:
                self._epoch += 1
                client = await self._place.take()
                stream = await client.open_stream(self._request, self._epoch, OPEN_TIMEOUT_S)
            except ResourceExhausted as error:
                self._place.refused()
                refusal = error.reason
                if self._closed:
                    break
                await asyncio.sleep(FULL_WAIT_S)
            else:
                self._keep(stream)
        if self._stream is None:
            logger.warning("every replica of a ControlNet is full: %s", refusal)
            raise full(self._name, refusal)
        return self._stream

    def _keep(self, stream: ResidualStream) -> None:
        self._place.opened()
        if self._closed:
            stream.close()
            self._place.leave()
            raise lost(self._name)
        stream.heard = self._heard
        self._stream = stream

    def _give_up(self, error: PentimentoError) -> None:
        logger.warning("a ControlNet replica failed: %s", error.reason)
        self._place.failed()
        self._drop(in_order=False)

    def _drop(self, *, in_order: bool) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(in_order=in_order)
        self._place.leave()
