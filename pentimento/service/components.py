"""Share the components of local disks between processes: serve them, report them, fetch what others hold, and measure
what loads cost from each tier.

peers = known_peers(settings)                                             # on the event loop
store = ComponentStore(…, peers=peers)
server.add(add_ComponentServiceServicer_to_server, ComponentServicer(store.read_range, is_busy), FULL_NAME)
reported = ReportedComponents(store.held)                                 # and its `run` as a task
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc.aio

from pentimento.api.components.v1 import component_service_pb2 as pb
from pentimento.api.components.v1.component_service_pb2_grpc import ComponentServiceServicer, ComponentServiceStub
from pentimento.clients.calls import stream
from pentimento.clients.controller import ControllerClient, RegistrationNews
from pentimento.domain.components import GB, HeldComponent, Tier, TierSpeed, changed_components
from pentimento.domain.errors import (
    Aborted,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    PentimentoError,
    ResourceExhausted,
)
from pentimento.domain.fleet import MAX_TOLD_COUNT, ReplicaReport
from pentimento.domain.generation import ObjectReference
from pentimento.rpc.channel import ChannelOpener, channel_opener
from pentimento.service.fleet_member import FleetSettings, addresses
from pentimento.telemetry import counter

logger = logging.getLogger(__name__)
T = TypeVar("T")


FULL_NAME = pb.DESCRIPTOR.services_by_name["ComponentService"].full_name
PEER_BYTES = counter("pentimento_component_peer_bytes_total", "Bytes of components fetched from other processes.")

MAX_RANGE_BYTES = 8 * 2**20
CHUNK_BYTES = 2**20
# Ranges that are sent at the same time, and while the process has own requests; further ones wait.
RANGES, BUSY_RANGES, MAX_WAITING = 4, 1, 64
# A peer that needs longer for a block of 8 MiB, or fails, is not asked for SKIPPED_S.
BLOCK_S, SKIPPED_S = 2.0, 10.0
# For the controller's answer; without one the object store has all.
ASK_S = 1.0
# Between two looks at the disk.
LOOK_S = 1.0

# Returns bytes of a component from an offset on; None for one that is not held.
ReadRange = Callable[[str, int, int], bytes | None]


class ComponentServicer(ComponentServiceServicer):
    """Send components to other processes, few ranges at a time; while `is_busy` returns True, fewer: the process's own
    requests come first."""

    def __init__(self, read: ReadRange, is_busy: Callable[[], bool]) -> None:
        self._read = read
        self._is_busy = is_busy
        self._sending = self._waiting = 0
        self._ended = asyncio.Condition()

    async def FetchComponent(
        self, request: pb.FetchComponentRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[pb.FetchComponentResponse]:
        if not 0 < request.size_bytes <= MAX_RANGE_BYTES:
            raise InvalidArgument.of("size_bytes", f"must be 1 to {MAX_RANGE_BYTES}, got {request.size_bytes}")
        async with self._place():
            data = await asyncio.to_thread(self._read, request.digest, request.offset_bytes, request.size_bytes)
            if data is None:
                raise NotFound("NO_COMPONENT", "the component is not held here")
            for start in range(0, len(data), CHUNK_BYTES):
                yield pb.FetchComponentResponse(data=data[start : start + CHUNK_BYTES])

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Wait until few enough ranges are sent. Raises ResourceExhausted if too many wait."""
        if self._waiting >= MAX_WAITING:
            message = f"at most {MAX_WAITING} ranges of components may wait"
            raise ResourceExhausted("TOO_MANY_FETCHES", message, retry_after_ms=1000)
        self._waiting += 1
        try:
            async with self._ended:
                await self._ended.wait_for(lambda: self._sending < (BUSY_RANGES if self._is_busy() else RANGES))
                self._sending += 1
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._sending -= 1
            async with self._ended:
                self._ended.notify_all()


class ComponentClient:
    """Fetch ranges of components from one replica."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ComponentServiceStub(channel)

    async def fetch(self, digest: str, offset: int, size: int, timeout_s: float) -> list[bytes]:
        """Return `size` bytes of a component from `offset` on, in pieces; the caller verifies them. Raises Aborted for
        another number of bytes, NotFound for a component that the replica does not hold, and the errors of calls."""
        request = pb.FetchComponentRequest(digest=digest, offset_bytes=offset, size_bytes=size)
        pieces: list[bytes] = []
        left = size
        messages = stream(lambda: self._stub.FetchComponent(request, timeout=timeout_s), lambda message: message)
        async with aclosing(messages) as arriving:
            async for message in arriving:
                pieces.append(message.data)
                left -= len(message.data)
                if left < 0:
                    break
        if left:
            raise Aborted("STALE_FRAME", f"the replica sent another number of bytes of a component than {size}")
        return pieces


@dataclass(frozen=True)
class Peer:
    """Fetch blocks of components from another process, on any thread but the event loop's. `skip` is called with its
    name if it should not be asked for a while."""

    name: str
    client: ComponentClient
    loop: asyncio.AbstractEventLoop
    skip: Callable[[str], None]

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        """Fill the buffer. Raises PentimentoError."""
        fetching = self.client.fetch(reference.digest, offset, len(buffer), BLOCK_S)
        for piece in _answer_of(self.loop, fetching, BLOCK_S):
            buffer[: len(piece)] = piece
            buffer = buffer[len(piece) :]
            PEER_BYTES.inc(len(piece))

    def note_failure(self, error: PentimentoError) -> None:
        """Do not ask it for a while, unless it only lacks the component by now."""
        if not isinstance(error, NotFound):
            self.skip(self.name)


def known_peers(settings: FleetSettings, instance_id: str = "") -> Callable[[str], Sequence[Peer]]:
    """Return a function that finds the peers that hold a component, by the controller of the settings; none without a
    controller. `instance_id`: the caller's, once it has one. Call it on the event loop, and the function on others."""
    found = addresses(settings.controller_address)
    if not found:
        return lambda digest: ()
    open_channel = channel_opener(settings.channels)
    return ComponentPeers(instance_id, ControllerClient(*map(open_channel, found)), open_channel).holding


class ComponentPeers:
    """Find the processes that hold a component. Created on the event loop, used on other threads."""

    def __init__(self, instance_id: str, controller: ControllerClient, open_channel: ChannelOpener) -> None:
        self._instance_id = instance_id
        self._controller = controller
        self._open_channel = open_channel
        self._loop = asyncio.get_running_loop()
        self._clients: dict[str, ComponentClient] = {}
        # In monotonic seconds, by address.
        self._skipped_until_s: dict[str, float] = {}

    def holding(self, digest: str) -> Sequence[Peer]:
        """Return the peers that hold a component; none if the controller does not answer."""
        try:
            return _answer_of(self._loop, self._holding(digest), ASK_S)
        except PentimentoError as error:
            logger.info("no peer is asked for a component: %s", error.message)
            return ()

    async def _holding(self, digest: str) -> list[Peer]:
        found = await self._controller.find_components(self._instance_id, digests=(digest,), timeout_s=ASK_S)
        now_s = time.monotonic()
        asked = (address for one in found for address in one.addresses)
        return [self._peer(address) for address in asked if self._skipped_until_s.get(address, now_s) <= now_s]

    def _peer(self, address: str) -> Peer:
        if address not in self._clients:
            self._clients[address] = ComponentClient(self._open_channel(address))
        return Peer(address, self._clients[address], self._loop, self._skip)

    def _skip(self, address: str) -> None:
        self._skipped_until_s[address] = time.monotonic() + SKIPPED_S


def _answer_of(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Return the answer of a call with a deadline of `limit_s`, from another thread than the loop's. Raises
    DeadlineExceeded also if the loop is busy for as long again, or stopped."""
    running = asyncio.run_coroutine_threadsafe(call, loop)
    try:
        return running.result(2 * limit_s)
    except TimeoutError:
        running.cancel()
        raise DeadlineExceeded("PEER_SLOW", "another process did not answer in time") from None


class ReportedComponents:
    """Report the components on the local disk to the controller, as changes since the last answered report. `look`
    returns them, on another thread."""

    def __init__(self, look: Callable[[], Sequence[HeldComponent]]) -> None:
        self._look = look
        self._held = self._sent = tuple[HeldComponent, ...]()
        self._told: tuple[HeldComponent, ...] | None = None
        self.news = RegistrationNews(registered=self._forget, answered=self._note_answer)

    async def run(self) -> None:
        """Look at the disk until cancelled."""
        while True:
            try:
                self._held = tuple((await asyncio.to_thread(self._look))[-MAX_TOLD_COUNT:])
            except PentimentoError as error:
                logger.warning("the components on the disk are not known: %s", error.message)
            await asyncio.sleep(LOOK_S)

    def added_to(self, report: ReplicaReport) -> ReplicaReport:
        """Return the report with the changes."""
        self._sent = self._held
        changes = changed_components(self._sent, self._told or ())
        return replace(report, component_changes=changes, all_components=self._told is None)

    def _forget(self) -> None:
        self._told = None

    def _note_answer(self) -> None:
        self._told = self._sent


# Weight of the newest load in the average of a tier.
NEWEST_WEIGHT = 0.3


class LoadSpeeds:
    """Average the seconds per gigabyte of loads, by tier. On any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds_per_gb: dict[Tier, float] = {}

    def note(self, parts: Mapping[Tier, int], seconds: float) -> None:
        """Count a load of `parts`, bytes by tier. The slowest tier takes the seconds that the others do not explain."""
        if not any(parts.values()):
            return
        slowest = max((tier for tier, size_bytes in parts.items() if size_bytes), key=list(Tier).index)
        with self._lock:
            others = (self._seconds_per_gb.get(tier, 0.0) * parts[tier] / GB for tier in parts if tier is not slowest)
            measured = max(seconds - sum(others), 0.0) * GB / parts[slowest]
            before = self._seconds_per_gb.get(slowest, measured)
            self._seconds_per_gb[slowest] = before + NEWEST_WEIGHT * (measured - before)

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        """Return the averages by tier, to two digits: noise in them is no news."""
        with self._lock:
            found = sorted(self._seconds_per_gb.items(), key=lambda item: item[0].value)
        return tuple(TierSpeed(tier, float(f"{seconds:.2g}")) for tier, seconds in found)
