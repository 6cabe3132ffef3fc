"""Choose replicas for ControlNets: the addresses that requests bring, the load of each, and the place of a stream."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc.aio

from pentimento.clients.controlnet import ControlNetClient
from pentimento.diffusion.controlnets import summed
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.generation import ControlNetSelection
from pentimento.domain.reasons import Reason
from pentimento.policies.replica_choice import ReplicaCandidate, best_replica
from pentimento.tensors.device import tensor_over
from pentimento.tensors.lines import LineListener
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.regions import RegionDirectory
from services.unet_worker.control.replica_watch import ReplicaWatch


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


# Wait once, for this long, for the first report of a replica: it decides where streams go.
FIRST_WORD_S = 0.5
Summing = Callable[[Sequence[ReceivedTensors]], ControlResiduals]


class ControlNetReplicas:
    """Watch the replicas, on the event loop only. A replica without a request for a while is dropped, and its channel
    closed. `summing` makes a step's residuals from its ControlNets' answers; `listener` as in `ControlNetClient`."""

    def __init__(
        self,
        open_channel: Callable[[str], grpc.aio.Channel],
        directory: RegionDirectory | None,
        summing: Summing = summed_answers,
        listener: LineListener | None = None,
    ) -> None:
        self.summing = summing
        self._listener = listener
        self._open_channel = open_channel
        self._directory = directory
        self._watches: dict[str, ReplicaWatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def mention(self, addresses: Sequence[str]) -> None:
        """Watch these replicas: a request may use them, so each has reported by the time its first stream opens."""
        for address in addresses:
            self.watch(address).mention()

    def watch(self, address: str) -> ReplicaWatch:
        """Return a replica's watch; start it if there is none."""
        if address not in self._watches:
            self._begin(address)
        return self._watches[address]

    async def look(self, addresses: Sequence[str]) -> None:
        """Return once each replica has reported, was unreachable, or has used up its time."""
        unheard = [watch for address in addresses if not (watch := self.watch(address)).looked.is_set()]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORD_S):
                for watch in unheard:
                    await watch.looked.wait()
        for watch in unheard:
            watch.looked.set()

    def _begin(self, address: str) -> None:
        channel = self._open_channel(address)
        watch = ReplicaWatch(channel, ControlNetClient(channel, self._directory, listener=self._listener))
        watch.mention()
        self._watches[address] = watch
        task = asyncio.create_task(self._run(address, watch), name="controlnet-replica")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, address: str, watch: ReplicaWatch) -> None:
        try:
            await watch.run()
        finally:
            del self._watches[address]


class StreamPlace:
    """Choose the replica of one ControlNet of one request, again for every opening. `beside` counts the request's
    streams by address; the places of one request share it."""

    def __init__(
        self, controlnet: str, addresses: Sequence[str], replicas: ControlNetReplicas, beside: Counter[str]
    ) -> None:
        self._controlnet = controlnet
        self._addresses = tuple(addresses)
        self._replicas = replicas
        self._beside = beside
        self._failed: set[str] = set()
        self._refused: set[str] = set()
        self._taken: tuple[str, ReplicaWatch] | None = None
        self._opening = False

    async def take(self) -> ControlNetClient:
        """Choose a replica, count one more stream on it, and return its client."""
        self.leave()
        await self._replicas.look(self._addresses)
        address = best_replica([self._candidate(address) for address in self._addresses], self._controlnet)
        if address in self._refused:
            # All have refused: the first one with a free place takes it.
            self._refused.clear()
        watch = self._replicas.watch(address)
        self._taken, self._opening = (address, watch), True
        watch.opening_count += 1
        watch.open_count += 1
        self._beside[address] += 1
        return watch.client

    def opened(self) -> None:
        """Stop counting the stream as opening: from here on the replica itself reports it."""
        if self._taken is not None and self._opening:
            self._taken[1].opening_count -= 1
            self._opening = False

    def refused(self) -> None:
        """Note that the replica had no credit, and leave it."""
        if self._taken is not None:
            self._refused.add(self._taken[0])
        self.leave()

    def failed(self) -> None:
        """Note that the replica lost a step, and leave it."""
        if self._taken is not None:
            self._failed.add(self._taken[0])
        self.leave()

    def leave(self) -> None:
        """Release the replica. Harmless twice."""
        if self._taken is None:
            return
        address, watch = self._taken
        self.opened()
        self._taken = None
        watch.mention()
        watch.open_count -= 1
        self._beside[address] -= 1

    def _candidate(self, address: str) -> ReplicaCandidate:
        watch = self._replicas.watch(address)
        return ReplicaCandidate(
            address=address,
            hearing=watch.hearing,
            load=watch.load,
            opening_count=watch.opening_count,
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


def lost(name: str) -> Unavailable:
    """Return the error of a request with a ControlNet that no replica serves: it never runs without."""
    message = f"no replica serves the ControlNet {name[:100]!r} now"
    return Unavailable(Reason.CONTROLNET_LOST, message, retry_after_ms=1000)


def full(name: str, refusal: str) -> ResourceExhausted:
    """Return the error of a request if all replicas of its ControlNet are full, as `refusal` reports. It may run
    later."""
    message = f"every replica of the ControlNet {name[:100]!r} is full: {refusal[:100]}"
    return ResourceExhausted(Reason.CONTROLNET_FULL, message, retry_after_ms=1000)
