"""Choose replicas for streams: the addresses that requests bring, the load of each, and the place of a stream."""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

import grpc.aio

from pentimento.clients.controlnet import ControlNetClient
from pentimento.clients.guidance_half import GuidanceHalfClient
from pentimento.diffusion.controlnets import summed
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.clock import Backoff
from pentimento.domain.errors import PentimentoError, ResourceExhausted, Unavailable
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.generation import ControlNetSelection
from pentimento.domain.reasons import Reason
from pentimento.policies.replica_choice import Hearing, ReplicaCandidate, ReplicaLoad, best_replica
from pentimento.tensors.cuda import tensor_over
from pentimento.tensors.lines import LineListener
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.regions import RegionDirectory

logger = logging.getLogger(__name__)

Client = TypeVar("Client")
Reports = Callable[[Client], AsyncGenerator[ReplicaLoad, None]]
OpenChannel = Callable[[str], grpc.aio.Channel]
Summing = Callable[[Sequence[ReceivedTensors]], ControlResiduals]
# A replica reports at least once a second.
SILENCE_S = 3.0
# A replica without a request for this long is dropped; the next request connects again.
IDLE_S = 60.0
# Wait once, for this long, for the first report of a replica: it decides where streams go.
FIRST_WORD_S = 0.5
_RECONNECTS = Backoff(first_s=0.05, max_s=1.0)


def summed_answers(answers: Sequence[ReceivedTensors]) -> ControlResiduals:
    """Return the sum of the residuals that all ControlNets of a step have sent so far, in their order; a single
    ControlNet's residuals share the received bytes. Values are not checked, which takes as long as a copy: a value that
    is not finite shows in the engine's prediction, and ends the request there."""
    return summed([_residuals_of(received) for received in answers])


def _residuals_of(received: ReceivedTensors) -> ControlResiduals:
    """Return the residuals by layer, over the received bytes."""
    tensors = {wire.binding.layer: tensor_over(wire, finite=False) for wire in received.tensors}
    return ControlResiduals(
        tuple(tensor for layer, tensor in tensors.items() if layer.startswith("down_block_")),
        tensors.get("mid_block"),
        tuple(tensor for layer, tensor in tensors.items() if layer.startswith("block_")),
        received.awaited_count,
    )


class StreamReplica(Generic[Client]):
    """Hold one replica, with its client. `opening_count` counts the streams that are being opened there, `open_count`
    all of this worker's; `load` is its last report, `looked` is set once it has reported or could not be reached.
    Without `reports` it reports nothing."""

    def __init__(self, channel: grpc.aio.Channel, client: Client, reports: Reports[Client] | None) -> None:
        self.client = client
        self._reports = reports
        self.hearing = Hearing.NEVER
        self.load = ReplicaLoad(0, 0)
        self.opening_count = 0
        self.open_count = 0
        self.looked = asyncio.Event()
        if reports is None:
            self.looked.set()
        self._channel = channel
        self.mention()

    def mention(self) -> None:
        self._mentioned_s = asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        return not self.open_count and asyncio.get_running_loop().time() - self._mentioned_s > IDLE_S

    async def follow(self) -> None:
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
        if self._reports is None:
            return False
        loop, answered = asyncio.get_running_loop(), False
        try:
            async with asyncio.timeout(SILENCE_S) as silence, aclosing(self._reports(self.client)) as reports:
                async for load in reports:
                    silence.reschedule(loop.time() + SILENCE_S)
                    answered, self.hearing, self.load = True, Hearing.NOW, load
                    self.looked.set()
                    if self.is_idle:
                        break
        except (PentimentoError, TimeoutError) as error:
            logger.debug("a replica does not report", extra={"reason": type(error).__name__})
        self.hearing = Hearing.LOST
        self.looked.set()
        return answered


async def reports_of(client: ControlNetClient) -> AsyncGenerator[ReplicaLoad, None]:
    async with aclosing(client.watch_credits()) as news:
        async for message in news:
            resident = frozenset(info.name for info in message.controlnets if info.resident)
            yield ReplicaLoad(message.credit_count, message.open_stream_count, message.draining, resident)


class StreamReplicas(Generic[Client]):
    """Hold the replicas that requests use, on the event loop only. One without a request for a while is dropped, and
    its channel closed. `reports` follows the load of a replica by its client; None if replicas report none."""

    def __init__(
        self,
        open_channel: OpenChannel,
        client: Callable[[grpc.aio.Channel], Client],
        reports: Reports[Client] | None = None,
    ) -> None:
        self._open_channel = open_channel
        self._client = client
        self._reports = reports
        self._known: dict[str, StreamReplica[Client]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def mention(self, addresses: Sequence[str]) -> None:
        """Follow these replicas: a request may use them, so each has reported by the time its first stream opens."""
        for address in addresses:
            self.at(address).mention()

    def at(self, address: str) -> StreamReplica[Client]:
        if address not in self._known:
            channel = self._open_channel(address)
            self._known[address] = StreamReplica(channel, self._client(channel), self._reports)
            task = asyncio.create_task(self._follow(address), name="replica", context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._known[address]

    async def look(self, addresses: Sequence[str]) -> None:
        """Return once each replica has reported, was unreachable, or has used up its time."""
        unheard = [replica for address in addresses if not (replica := self.at(address)).looked.is_set()]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORD_S):
                for replica in unheard:
                    await replica.looked.wait()
        for replica in unheard:
            replica.looked.set()

    async def _follow(self, address: str) -> None:
        try:
            await self._known[address].follow()
        finally:
            del self._known[address]


class ControlNetReplicas(StreamReplicas[ControlNetClient]):
    """Hold the replicas of the ControlNet service. `summing` makes a step's residuals from its ControlNets' answers;
    `listener` as in `ControlNetClient`."""

    def __init__(
        self,
        open_channel: OpenChannel,
        directory: RegionDirectory | None,
        summing: Summing = summed_answers,
        listener: LineListener | None = None,
    ) -> None:
        super().__init__(
            open_channel, lambda channel: ControlNetClient(channel, directory, listener=listener), reports_of
        )
        self.summing = summing


class PeerWorkers(StreamReplicas[GuidanceHalfClient]):
    """Hold the workers that compute halves for this one; `listener` as in `GuidanceHalfClient`."""

    def __init__(
        self, open_channel: OpenChannel, directory: RegionDirectory | None, listener: LineListener | None = None
    ) -> None:
        super().__init__(open_channel, lambda channel: GuidanceHalfClient(channel, directory, listener=listener))


class StreamPlace(Generic[Client]):
    """Choose the replica of one stream, again for every opening: the best one for streams of that name. `beside` counts
    the request's streams by address; the places of one request share it."""

    def __init__(
        self, name: str, addresses: Sequence[str], replicas: StreamReplicas[Client], beside: Counter[str]
    ) -> None:
        self._name = name
        self._addresses = tuple(addresses)
        self._replicas = replicas
        self._beside = beside
        self._failed: set[str] = set()
        self._refused: set[str] = set()
        self._taken: tuple[str, StreamReplica[Client]] | None = None
        self._opening = False

    async def take(self) -> Client:
        """Choose a replica, count one more stream on it, and return its client."""
        self.leave()
        await self._replicas.look(self._addresses)
        address = best_replica([self._candidate(address) for address in self._addresses], self._name)
        if address in self._refused:
            # All have refused: the first one with a free place takes it.
            self._refused.clear()
        replica = self._replicas.at(address)
        self._taken, self._opening = (address, replica), True
        replica.opening_count += 1
        replica.open_count += 1
        self._beside[address] += 1
        return replica.client

    def opened(self) -> None:
        """Stop counting the stream as opening: from here on the replica itself reports it."""
        if self._taken is not None and self._opening:
            self._taken[1].opening_count -= 1
            self._opening = False

    def refused(self) -> None:
        if self._taken is not None:
            self._refused.add(self._taken[0])
        self.leave()

    def failed(self) -> None:
        if self._taken is not None:
            self._failed.add(self._taken[0])
        self.leave()

    def leave(self) -> None:
        if self._taken is None:
            return
        address, replica = self._taken
        self.opened()
        self._taken = None
        replica.mention()
        replica.open_count -= 1
        self._beside[address] -= 1

    def _candidate(self, address: str) -> ReplicaCandidate:
        replica = self._replicas.at(address)
        return ReplicaCandidate(
            address=address,
            hearing=replica.hearing,
            load=replica.load,
            opening_count=replica.opening_count,
            same_picture_count=self._beside[address],
            failed=address in self._failed,
            refused=address in self._refused,
        )


def addresses_of(selection: ControlNetSelection, endpoints: Sequence[ControlNetEndpoint]) -> tuple[str, ...]:
    """Return the addresses that serve a ControlNet; equally good replicas are tried in this order. Raises Unavailable
    (CONTROLNET_LOST) if no replica serves it."""
    found = tuple(
        endpoint.address
        for endpoint in endpoints
        if endpoint.name == selection.name and endpoint.controlnet_digest in ("", selection.digest)
    )
    if not found:
        raise lost(selection.name)
    return found


def lost(name: str, cause: PentimentoError | None = None) -> PentimentoError:
    """Return the error of a request with a ControlNet that no replica serves, after `cause`: it never runs without. If
    all replicas are full, it may run later."""
    if isinstance(cause, ResourceExhausted):
        message = f"every replica of the ControlNet {name[:100]!r} is full: {cause.reason[:100]}"
        return ResourceExhausted(Reason.CONTROLNET_FULL, message, retry_after_ms=1000)
    message = f"no replica serves the ControlNet {name[:100]!r} now"
    return Unavailable(Reason.CONTROLNET_LOST, message, retry_after_ms=1000)
