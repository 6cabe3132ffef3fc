"""One ControlNet of one picture: a stream of residuals that outlives its replica."""

import asyncio
import logging

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
from services.unet_worker.control.replicas import StreamPlace, lost

logger = logging.getLogger(__name__)

# Of a step: on other replicas, or on the same where there is no other.
MAX_REPLAYS = 2
OPEN_TIMEOUT_S = 60.0
STEP_TIMEOUT_S = 30.0
# A replica that is full is asked again, and the others meanwhile.
FULL_WAIT_S = 0.1
MAX_FULL_WAITS = 100
# Answers after which another replica may do better.
REPLICA_ERRORS = (Unavailable, Aborted, Internal, DeadlineExceeded, NotFound, FailedPrecondition)


class ReplayedStream:
    """Asks for one step at a time, on the event loop only. A replica that is lost or answers nonsense costs a replay of
    the step on another one, under a new epoch: what the old one may still send is told from what the new one does."""

    def __init__(self, name: str, place: StreamPlace, request: ResidualStreamRequest) -> None:
        self._name = name
        self._place = place
        self._request = request
        self._epoch = 0
        self._stream: ResidualStream | None = None
        self._closed = False

    async def residuals(self, step_index: int, timestep: float, latents: OutgoingTensor) -> ReceivedTensors:
        """Return a step's residuals, valid until the next step. Raises Unavailable (CONTROLNET_LOST) when replicas
        failed it MAX_REPLAYS times more than once, and what a replica refuses the request itself for."""
        failures = 0
        while True:
            try:
                stream = await self._opened()
                async with asyncio.timeout(STEP_TIMEOUT_S):
                    return await stream.residuals(step_index, timestep, latents)
            except TimeoutError:
                self._give_up(Unavailable("CONTROLNET_SILENT", "no residuals in time"))
            except REPLICA_ERRORS as error:
                self._give_up(error)
            failures += 1
            if failures > MAX_REPLAYS or self._closed:
                raise lost(self._name)
            metrics.CONTROL_REPLAYS.inc()

    def close(self) -> None:
        """End it. Harmless twice."""
        self._closed = True
        self._drop()

    async def _opened(self) -> ResidualStream:
        for _ in range(MAX_FULL_WAITS):
            if self._stream is not None:
                return self._stream
            try:
                self._epoch += 1
                client = await self._place.take()
                stream = await client.open_stream(self._request, self._epoch, OPEN_TIMEOUT_S)
            except ResourceExhausted:
                self._place.refused()
                await asyncio.sleep(FULL_WAIT_S)
            else:
                self._keep(stream)
        if self._stream is None:
            raise Unavailable("CONTROLNET_FULL", "every replica of the ControlNet is full")
        return self._stream

    def _keep(self, stream: ResidualStream) -> None:
        self._place.opened()
        if self._closed:
            stream.close()
            self._place.leave()
            raise lost(self._name)
        self._stream = stream

    def _give_up(self, error: PentimentoError) -> None:
        logger.warning("a ControlNet replica failed: %s", error.reason)
        self._place.failed()
        self._drop()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._place.leave()
