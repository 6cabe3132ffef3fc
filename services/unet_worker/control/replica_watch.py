"""Watch one replica of the ControlNet service: a stream of its credits."""

import asyncio
import logging
from contextlib import aclosing

import grpc.aio

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.clients.controlnet import ControlNetClient
from pentimento.domain.backoff import Backoff
from pentimento.domain.errors import PentimentoError
from pentimento.policies.replica_choice import Hearing, ReplicaLoad

logger = logging.getLogger(__name__)

# A replica reports at least once a second.
SILENCE_S = 3.0
# A replica without a request for this long is no longer watched; the next request connects again.
IDLE_S = 60.0
_RECONNECTS = Backoff(first_s=0.05, max_s=1.0)


class ReplicaWatch:
    """Track one replica; on the event loop only. `opening_count` counts the streams that are being opened there,
    `open_count` all of this worker's."""

    def __init__(self, channel: grpc.aio.Channel, client: ControlNetClient) -> None:
        self.client = client
        self.hearing = Hearing.NEVER
        self.load = ReplicaLoad(0, 0)
        self.opening_count = 0
        self.open_count = 0
        # Set once it has reported, or could not be reached.
        self.looked = asyncio.Event()
        self._channel = channel
        self._mentioned_s = 0.0

    def mention(self) -> None:
        """Note that a request may use the replica, so that it is watched for longer."""
        self._mentioned_s = asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        """Return whether no request uses the replica or has mentioned it for a while."""
        return not self.open_count and asyncio.get_running_loop().time() - self._mentioned_s > IDLE_S

    async def run(self) -> None:
        """Follow the replica's credits until it is idle, then close the channel."""
        delays_s = _RECONNECTS.delays_s()
        try:
            while not self.is_idle:
                if await self._listen():
                    delays_s = _RECONNECTS.delays_s()
                await asyncio.sleep(next(delays_s))
        finally:
            await self._channel.close()

    async def _listen(self) -> bool:
        """Return whether it answered before its stream ended, broke or fell silent."""
        loop, answered = asyncio.get_running_loop(), False
        try:
            async with asyncio.timeout(SILENCE_S) as silence, aclosing(self.client.watch_credits()) as news:
                async for message in news:
                    silence.reschedule(loop.time() + SILENCE_S)
                    answered, self.hearing, self.load = True, Hearing.NOW, _load(message)
                    self.looked.set()
                    if self.is_idle:
                        break
        except (PentimentoError, TimeoutError) as error:
            logger.debug("a ControlNet replica does not report", extra={"reason": type(error).__name__})
        self.hearing = Hearing.LOST
        self.looked.set()
        return answered


def _load(message: pb.WatchCreditsResponse) -> ReplicaLoad:
    resident = frozenset(info.name for info in message.controlnets if info.resident)
    return ReplicaLoad(message.credit_count, message.open_stream_count, message.draining, resident)
