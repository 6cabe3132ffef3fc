"""Where ControlNets are served: the replicas that pictures were told of, how loaded each is, and who takes a stream."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc.aio

from pentimento.clients.controlnet import ControlNetClient
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.generation import ControlNetSelection
from pentimento.domain.reasons import Reason
from pentimento.policies.replica_choice import ReplicaCandidate, best_replica
from pentimento.tensors.lines import LineListener
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.regions import RegionDirectory
from services.unet_worker.control.answers import summed_answers
from services.unet_worker.control.replica_watch import ReplicaWatch

# A replica that nothing is known of yet is waited for so long, once: what it tells decides where streams go.
FIRST_WORD_S = 0.5
Summing = Callable[[Sequence[ReceivedTensors]], ControlResiduals]


class ControlNetReplicas:
    """On the event loop only. A replica that no picture was sent to for a while is left, and its channel closed.
    `summing` makes the residuals of a step of what its ControlNets answered; `lined` and `listener` as in
    `ControlNetClient`."""

    def __init__(
        self,
        open_channel: Callable[[str], grpc.aio.Channel],
        directory: RegionDirectory | None,
        summing: Summing = summed_answers,
        lined: bool = True,
        listener: LineListener | None = None,
    ) -> None:
        self.summing = summing
        self._lined = lined
        self._listener = listener
        self._open_channel = open_channel
        self._directory = directory
        self._watches: dict[str, ReplicaWatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def mention(self, addresses: Sequence[str]) -> None:
        """Changes state: a picture may be sent there, so each is heard from by the time its first stream is opened."""
        for address in addresses:
            self.watch(address).mention()

    def watch(self, address: str) -> ReplicaWatch:
        """Return what is known of a replica, from now on or longer."""
        if address not in self._watches:
            self._begin(address)
        return self._watches[address]

    async def look(self, addresses: Sequence[str]) -> None:
        """Return once each has told something, could not be reached, or was waited for long enough."""
        unheard = [watch for address in addresses if not (watch := self.watch(address)).looked.is_set()]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORD_S):
                for watch in unheard:
                    await watch.looked.wait()
        for watch in unheard:
            watch.looked.set()

    def _begin(self, address: str) -> None:
        channel = self._open_channel(address)
        watch = ReplicaWatch(channel, ControlNetClient(channel, self._directory, self._lined, self._listener))
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
    """The replica of one ControlNet of one picture, chosen anew for every opening. `beside` counts the streams of the
    picture by address; the places of one picture share it."""

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
        """Choose a replica, which counts as one with a stream more from now on, and return its client."""
        self.leave()
        await self._replicas.look(self._addresses)
        address = best_replica([self._candidate(address) for address in self._addresses], self._controlnet)
        if address in self._refused:
            # Each has refused: whoever has room first takes it.
            self._refused.clear()
        watch = self._replicas.watch(address)
        self._taken, self._opening = (address, watch), True
        watch.opening_count += 1
        watch.open_count += 1
        self._beside[address] += 1
        return watch.client

    def opened(self) -> None:
        """Changes state: from here on the replica itself tells of the stream."""
        if self._taken is not None and self._opening:
            self._taken[1].opening_count -= 1
            self._opening = False

    def refused(self) -> None:
        """Changes state: it had no credit."""
        if self._taken is not None:
            self._refused.add(self._taken[0])
        self.leave()

    def failed(self) -> None:
        """Changes state: it lost a step."""
        if self._taken is not None:
            self._failed.add(self._taken[0])
        self.leave()

    def leave(self) -> None:
        """Changes state: nothing of the picture's is there any more. Harmless twice."""
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
    """Return where a ControlNet is served; of replicas that are equal otherwise the first is tried first. Raises
    Unavailable (CONTROLNET_LOST) where it is served nowhere."""
    found = tuple(
        endpoint.address
        for endpoint in endpoints
        if endpoint.name == selection.name and endpoint.controlnet_digest in ("", selection.digest)
    )
    if not found:
        raise lost(selection.name)
    return found


def lost(name: str) -> Unavailable:
    """Return the error of a picture whose ControlNet nobody serves now: it is never painted without."""
    message = f"no replica serves the ControlNet {name[:100]!r} now"
    return Unavailable(Reason.CONTROLNET_LOST, message, retry_after_ms=1000)


def full(name: str, refusal: str) -> ResourceExhausted:
    """Return the error of a picture whose ControlNet has no replica with room, which said so by `refusal`: it may be
    painted later."""
    message = f"every replica of the ControlNet {name[:100]!r} is full: {refusal[:100]}"
    return ResourceExhausted(Reason.CONTROLNET_FULL, message, retry_after_ms=1000)
