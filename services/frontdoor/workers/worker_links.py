"""Connect to workers: one stream of credits each, which also proves liveness, and the attempts that run there."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import grpc.aio

from pentimento.clients.worker import WorkerClient
from pentimento.dataplane.events import Event, WorkerLost, WorkerReported
from pentimento.domain.adapters import Adapter
from pentimento.domain.clock import Backoff
from pentimento.domain.components import GB, HeldComponent, Tier
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError
from pentimento.domain.execution import WorkerCredits
from pentimento.domain.fleet import Capability
from pentimento.domain.reasons import Reason
from pentimento.policies.adapter_needs import ADAPTER_CAPABILITIES, AdapterHoldings
from services.frontdoor.identity import Identity
from services.frontdoor.metrics import WORKERS
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue

logger = logging.getLogger(__name__)

_RECONNECTS = Backoff(first_s=0.05, max_s=1.0)

REFUSED = (
    "a worker follows a newer start of this frontdoor; where the journal was lost or restored, "
    "see `pentimento journal renew --help`"
)


def is_refusal(error: Exception) -> TypeGuard[PentimentoError]:
    """Return whether a worker rejects this frontdoor's epoch as stale or invalid."""
    if isinstance(error, Aborted):
        return error.reason == Reason.STALE_EPOCH
    return isinstance(error, InvalidArgument)


@dataclass(eq=False)
class WorkerLink:
    """Connect to one address. `worker_id` is empty until the worker's first report. After `silence_s` without a report
    the worker is lost; it reports at least once a second."""

    address: str
    channel: grpc.aio.Channel
    identity: Identity
    silence_s: float
    on_credits: Callable[["WorkerLink", WorkerCredits], None]
    on_loss: Callable[["WorkerLink"], None]
    pinned: bool = False
    worker_id: str = ""
    worker_generation: int = 0
    # The later start of the same name that was logged, 0 for none: this worker still reports every second.
    outranked_by: int = 0
    # The worker's error if it considers another start of this frontdoor newer, else None.
    refusal: PentimentoError | None = None
    # Streams of attempts, cancelled when the worker is lost.
    runs: set[asyncio.Task[Any]] = field(default_factory=set)
    adapters: "LinkAdapters" = field(default_factory=lambda: LinkAdapters())

    def __post_init__(self) -> None:
        self.client = WorkerClient(self.channel)

    async def watch(self) -> None:
        """Keep the stream of credits open until cancelled."""
        delays_s = _RECONNECTS.delays_s()
        try:
            while True:
                if await self._listen():
                    delays_s = _RECONNECTS.delays_s()
                await asyncio.sleep(next(delays_s))
        finally:
            self._lose()
            await self.channel.close()

    async def _listen(self) -> bool:
        """Read the stream until it breaks or falls silent; return whether the worker answered."""
        answered = False
        try:
            async with heard_within(self.silence_s) as silence:
                identity = self.identity
                stream = self.client.watch_credits(identity.frontdoor_id, identity.epoch, identity.journal_id)
                async for credits in stream:
                    silence.heard()
                    answered, self.refusal = True, None
                    self.on_credits(self, credits)
        except (PentimentoError, TimeoutError) as error:
            logger.log(logging.WARNING if answered else logging.DEBUG, "worker lost", extra=self._describe(error))
            self._note_refusal(error)
        self._lose()
        return answered

    def _note_refusal(self, error: Exception) -> None:
        """Log a refusal once: the link retries, but no request runs on this worker until an operator intervenes."""
        if not is_refusal(error):
            return
        if self.refusal is None:
            fields = {**self._describe(error), **error.metadata, "answer": error.message}
            logger.error(REFUSED, extra=fields)
        self.refusal = error

    def _lose(self) -> None:
        if not self.worker_id:
            return
        self.on_loss(self)
        for run in self.runs:
            run.cancel()
        self.worker_id, self.adapters = "", LinkAdapters()

    def _describe(self, error: Exception) -> dict[str, str]:
        reason = error.reason if isinstance(error, PentimentoError) else "SILENT"
        return {"address": self.address, "worker": self.worker_id, "reason": reason}


@dataclass(eq=False)
class WorkerLinks:
    """Hold the links to the plan's workers and to the operator's, which need no plan (`pinned`)."""

    open_channel: Callable[[str], grpc.aio.Channel]
    catalogue: Catalogue
    adapters: AdapterCatalogue
    submit: Callable[[Event], None]
    identity: Identity
    silence_s: float
    _wanted: frozenset[str] = field(default=frozenset(), init=False)
    _links: dict[str, WorkerLink] = field(default_factory=dict, init=False)
    _watches: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _by_worker: dict[str, WorkerLink] = field(default_factory=dict, init=False)

    def follow(self, wanted: Mapping[str, bool]) -> None:
        """Watch these addresses (True: pinned), and leave others as soon as no attempt runs there."""
        self._wanted = frozenset(wanted)
        for address, pinned in wanted.items():
            if address not in self._links:
                self._open(address)
                if pinned:
                    self.catalogue.await_worker(address)
            self._links[address].pinned = pinned
        for link in tuple(self._links.values()):
            self._leave_if_idle(link)

    def of_worker(self, worker_id: str) -> WorkerLink | None:
        return self._by_worker.get(worker_id)

    def address_of(self, worker_id: str) -> str:
        link = self._by_worker.get(worker_id)
        return link.address if link is not None else ""

    def refusals(self) -> dict[str, PentimentoError]:
        """Return, by address, the errors of workers that refuse this frontdoor."""
        return {address: link.refusal for address, link in self._links.items() if link.refusal is not None}

    async def close(self) -> None:
        watches = tuple(self._watches.values())
        for address in tuple(self._links):
            self._leave(address)
        await asyncio.gather(*watches, return_exceptions=True)

    def _open(self, address: str) -> None:
        link = WorkerLink(
            address, self.open_channel(address), self.identity, self.silence_s, self._on_credits, self._on_loss
        )
        self._links[address] = link
        self._watches[address] = asyncio.get_running_loop().create_task(link.watch(), name=f"watch {address}")

    def _leave_if_idle(self, link: WorkerLink) -> None:
        if link.address not in self._wanted and not link.runs:
            self._leave(link.address)

    def _leave(self, address: str) -> None:
        self.catalogue.await_no_longer(address)
        del self._links[address]
        self._watches.pop(address).cancel()

    def _on_credits(self, link: WorkerLink, credits: WorkerCredits) -> None:
        self.catalogue.await_no_longer(link.address)
        link.adapters.hear(credits)
        namesake = self._by_worker.get(credits.worker_id)
        if namesake not in (None, link) and credits.held.worker_generation < namesake.worker_generation:
            # Two processes have one name: the later start counts, as in the dataplane.
            if link.outranked_by != namesake.worker_generation:
                rejected = {"worker": credits.worker_id, "address": link.address, "used_address": namesake.address}
                logger.error("two workers with one name", extra={**rejected, "reason": Reason.REPLICA_SUPERSEDED})
            link.outranked_by = namesake.worker_generation
            return
        if self._is_second_way(link, namesake, credits):
            self._leave_if_idle(link)
            return
        if namesake is not link:
            # The dataplane forgets the adapters of the earlier worker of this name together with that worker.
            link.adapters.tell_anew()
        if link.worker_id != credits.worker_id:
            logger.info("worker connected", extra={"worker": credits.worker_id, "address": link.address})
        link.worker_id, link.worker_generation = credits.worker_id, credits.held.worker_generation
        self._by_worker[link.worker_id] = link
        self.catalogue.learn(credits.held)
        self.adapters.learn(credits)
        self.submit(_reported(credits, link.pinned, link.adapters.news(credits, self.adapters.uploaded)))
        WORKERS.set(len(self._by_worker))
        self._leave_if_idle(link)

    def _is_second_way(self, link: WorkerLink, namesake: WorkerLink | None, credits: WorkerCredits) -> bool:
        """Return whether the same process already reports at another address, and this one is no better."""
        if namesake is None or namesake is link or credits.held.worker_generation != namesake.worker_generation:
            return False
        return link.address not in self._wanted or namesake.address in self._wanted

    def _on_loss(self, link: WorkerLink) -> None:
        if self._by_worker.get(link.worker_id) is link:
            # Report the loss first: a worker that is only silent still receives the stops of its attempts.
            self.submit(WorkerLost(link.worker_id, link.worker_generation))
            del self._by_worker[link.worker_id]
        WORKERS.set(len(self._by_worker))


class LinkAdapters:
    """Track the adapters that a link's worker reported, and the holdings that the dataplane received."""

    def __init__(self) -> None:
        self._known: tuple[Adapter, ...] = ()
        self._components: dict[str, HeldComponent] = {}
        self._speeds: dict[Tier, float] = {}
        self._told: AdapterHoldings | None = None

    def hear(self, credits: WorkerCredits) -> None:
        """Store the known adapters, components and speeds, which a worker reports first and after each change."""
        if credits.known_adapters is not None:
            self._known = credits.known_adapters
        if credits.all_components:
            self._components = {}
        self._components |= {one.digest: one for one in credits.component_changes}
        for gone in [one for one in credits.component_changes if one.tier is Tier.STORE]:
            del self._components[gone.digest]
        if credits.tier_speeds:
            self._speeds = {one.tier: one.seconds_per_gb for one in credits.tier_speeds}

    def tell_anew(self) -> None:
        """Report all holdings again at the next `news`."""
        self._told = None

    def news(self, credits: WorkerCredits, uploaded: Iterable[Adapter] = ()) -> AdapterHoldings | None:
        """Return the worker's holdings if they have changed, else None. It reports resident LoRAs by name; `uploaded`
        LoRAs are resident once it has fetched them."""
        self.hear(credits)
        resident = set(credits.resident_components)
        own = {adapter.name for adapter in self._known}
        resident_loras = [*self._known, *(adapter for adapter in uploaded if adapter.name not in own)]
        holdings = AdapterHoldings(
            credits.capabilities & ADAPTER_CAPABILITIES,
            frozenset(adapter.digest for adapter in self._known),
            frozenset(adapter.digest for adapter in resident_loras if adapter.name in resident),
            {
                one.digest: self._speeds[one.tier] * one.size_bytes / GB
                for one in self._components.values()
                if one.tier in self._speeds
            },
            self._speeds.get(Tier.STORE),
        )
        if holdings == self._told:
            return None
        self._told = holdings
        return holdings


def _reported(credits: WorkerCredits, pinned: bool, holdings: AdapterHoldings | None) -> WorkerReported:
    return WorkerReported(
        worker_id=credits.worker_id,
        model=credits.held.model,
        model_digest=credits.held.model_digest,
        worker_generation=credits.held.worker_generation,
        credit_count=credits.credit_count,
        reserve_count=credits.reserve_count,
        preparing_count=credits.preparing_count,
        draining=credits.draining,
        pinned=pinned,
        pairable=Capability.LATENT_PARALLEL in credits.capabilities,
        holdings=holdings,
        running=frozenset((attempt.request_id, attempt.fencing_token) for attempt in credits.attempts),
    )


LOOKS = 4


class SilenceWatch:
    """Call `on_silence` after `silence_s` without `heard`, or at most a quarter of it later.

    The watch checks four times in that time, each check scheduled by the one before. A process that was stopped or had
    no processor makes only one check for the whole pause, and reads the messages in its sockets before the next.
    """

    def __init__(self, silence_s: float, on_silence: Callable[[], None]) -> None:
        self._interval_s = silence_s / LOOKS
        self._on_silence = on_silence
        self._looks_left = LOOKS
        self._timer = self._look_later()

    def heard(self) -> None:
        self._looks_left = LOOKS

    def close(self) -> None:
        self._timer.cancel()

    def _look_later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        if self._looks_left == 0:
            self._on_silence()
            return
        self._looks_left -= 1
        self._timer = self._look_later()


@asynccontextmanager
async def heard_within(silence_s: float) -> AsyncIterator[SilenceWatch]:
    """Raise TimeoutError in the block after `silence_s` without a call of `heard`."""
    async with asyncio.timeout(None) as limit:
        watch = SilenceWatch(silence_s, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        try:
            yield watch
        finally:
            watch.close()
