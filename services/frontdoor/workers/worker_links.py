"""Connections to workers: a stream of credits each, which is their liveness too, and the attempts that run there."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

import grpc.aio

from pentimento.clients.worker import WorkerClient
from pentimento.dataplane.events import Event, WorkerLost, WorkerReported
from pentimento.domain.adapters import Adapter
from pentimento.domain.backoff import Backoff
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError
from pentimento.domain.execution import WorkerCredits
from pentimento.domain.fleet import Capability
from pentimento.domain.reasons import Reason
from pentimento.policies.adapter_needs import ADAPTER_CAPABILITIES, AdapterHoldings
from services.frontdoor.identity import Identity
from services.frontdoor.metrics import WORKERS
from services.frontdoor.workers.adapter_catalogue import AdapterCatalogue
from services.frontdoor.workers.catalogue import Catalogue
from services.frontdoor.workers.silence import heard_within

logger = logging.getLogger(__name__)

_RECONNECTS = Backoff(first_s=0.05, max_s=1.0)

REFUSED = (
    "a worker follows a newer start of this frontdoor; where the journal was lost or restored, "
    "see `pentimento journal renew --help`"
)


def is_refusal(error: Exception) -> TypeGuard[PentimentoError]:
    """Whether a worker does not take this frontdoor for the newest of its id, or its epoch for one at all."""
    if isinstance(error, Aborted):
        return error.reason == Reason.STALE_EPOCH
    return isinstance(error, InvalidArgument)


class WorkerLink:
    """One address. `worker_id` is empty until the first word of the worker there."""

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        identity: Identity,
        silence_s: float,
        on_credits: Callable[["WorkerLink", WorkerCredits], None],
        on_loss: Callable[["WorkerLink"], None],
    ) -> None:
        """`silence_s`: a worker that says nothing for so long is lost; it speaks at least once a second."""
        self.address = address
        self.client = WorkerClient(channel)
        self.pinned = False
        self.worker_id = ""
        self.worker_generation = 0
        # The later start of its name that was told of, 0 for none: it goes on speaking once a second and more.
        self.outranked_by = 0
        # Why the worker there takes another start of this frontdoor for the newer one; None while it does not.
        self.refusal: PentimentoError | None = None
        # Streams of attempts, cancelled when the worker is lost: nobody would read on.
        self.runs: set[asyncio.Task[Any]] = set()
        self.adapters = LinkAdapters()
        self._channel = channel
        self._identity = identity
        self._silence_s = silence_s
        self._on_credits = on_credits
        self._on_loss = on_loss

    async def watch(self) -> None:
        """Keep the stream of credits up until cancelled."""
        delays_s = _RECONNECTS.delays_s()
        try:
            while True:
                if await self._listen():
                    delays_s = _RECONNECTS.delays_s()
                await asyncio.sleep(next(delays_s))
        finally:
            self._lose()
            await self._channel.close()

    async def _listen(self) -> bool:
        """Whether the worker answered before its stream broke or fell silent."""
        answered = False
        try:
            async with heard_within(self._silence_s) as silence:
                identity = self._identity
                stream = self.client.watch_credits(identity.frontdoor_id, identity.epoch, identity.journal_id)
                async for credits in stream:
                    silence.heard()
                    answered, self.refusal = True, None
                    self._on_credits(self, credits)
        except (PentimentoError, TimeoutError) as error:
            logger.log(logging.WARNING if answered else logging.DEBUG, "worker lost", extra=self._describe(error))
            self._note_refusal(error)
        self._lose()
        return answered

    def _note_refusal(self, error: Exception) -> None:
        """Said aloud once: this link goes on trying, and nothing is painted here until somebody does something."""
        if not is_refusal(error):
            return
        if self.refusal is None:
            fields = {**self._describe(error), **error.metadata, "answer": error.message}
            logger.error(REFUSED, extra=fields)
        self.refusal = error

    def _lose(self) -> None:
        if not self.worker_id:
            return
        self._on_loss(self)
        for run in self.runs:
            run.cancel()
        self.worker_id, self.adapters = "", LinkAdapters()

    def _describe(self, error: Exception) -> dict[str, str]:
        reason = error.reason if isinstance(error, PentimentoError) else "SILENT"
        return {"address": self.address, "worker": self.worker_id, "reason": reason}


class WorkerLinks:
    """The links that are wanted: those of the plan, and those the operator named, which need no plan (`pinned`)."""

    def __init__(
        self,
        open_channel: Callable[[str], grpc.aio.Channel],
        catalogue: Catalogue,
        adapters: AdapterCatalogue,
        submit: Callable[[Event], None],
        identity: Identity,
        silence_s: float,
    ) -> None:
        self._open_channel = open_channel
        self._catalogue = catalogue
        self._adapters = adapters
        self._submit = submit
        self._identity = identity
        self._silence_s = silence_s
        self._wanted: frozenset[str] = frozenset()
        self._links: dict[str, WorkerLink] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._by_worker: dict[str, WorkerLink] = {}

    def follow(self, wanted: Mapping[str, bool]) -> None:
        """Changes state: watch these addresses (True: pinned), and leave others as soon as nothing runs there."""
        self._wanted = frozenset(wanted)
        for address, pinned in wanted.items():
            if address not in self._links:
                self._open(address)
                if pinned:
                    self._catalogue.await_worker(address)
            self._links[address].pinned = pinned
        for link in tuple(self._links.values()):
            self._leave_if_idle(link)

    def of_worker(self, worker_id: str) -> WorkerLink | None:
        return self._by_worker.get(worker_id)

    def address_of(self, worker_id: str) -> str:
        link = self._by_worker.get(worker_id)
        return link.address if link is not None else ""

    def refusals(self) -> dict[str, PentimentoError]:
        """By address, what workers say that refuse this frontdoor."""
        return {address: link.refusal for address, link in self._links.items() if link.refusal is not None}

    async def close(self) -> None:
        watches = tuple(self._watches.values())
        for address in tuple(self._links):
            self._leave(address)
        await asyncio.gather(*watches, return_exceptions=True)

    def _open(self, address: str) -> None:
        link = WorkerLink(
            address, self._open_channel(address), self._identity, self._silence_s, self._on_credits, self._on_loss
        )
        self._links[address] = link
        self._watches[address] = asyncio.get_running_loop().create_task(link.watch(), name=f"watch {address}")

    def _leave_if_idle(self, link: WorkerLink) -> None:
        if link.address not in self._wanted and not link.runs:
            self._leave(link.address)

    def _leave(self, address: str) -> None:
        self._catalogue.await_no_longer(address)
        del self._links[address]
        self._watches.pop(address).cancel()

    def _on_credits(self, link: WorkerLink, credits: WorkerCredits) -> None:
        self._catalogue.await_no_longer(link.address)
        link.adapters.hear(credits)
        namesake = self._by_worker.get(credits.worker_id)
        if namesake not in (None, link) and credits.held.worker_generation < namesake.worker_generation:
            # Two processes under one name: the later start is the one, as the dataplane sees it.
            if link.outranked_by != namesake.worker_generation:
                rejected = {"worker": credits.worker_id, "address": link.address, "used_address": namesake.address}
                logger.error("two workers with one name", extra={**rejected, "reason": Reason.REPLICA_SUPERSEDED})
            link.outranked_by = namesake.worker_generation
            return
        if self._is_second_way(link, namesake, credits):
            self._leave_if_idle(link)
            return
        if namesake is not link:
            # What the dataplane knew of the worker that had the name is forgotten there with it.
            link.adapters.tell_anew()
        if link.worker_id != credits.worker_id:
            logger.info("worker connected", extra={"worker": credits.worker_id, "address": link.address})
        link.worker_id, link.worker_generation = credits.worker_id, credits.held.worker_generation
        self._by_worker[link.worker_id] = link
        self._catalogue.learn(credits.held)
        self._adapters.learn(credits)
        self._submit(_reported(credits, link.pinned, link.adapters.news(credits, self._adapters.uploaded)))
        WORKERS.set(len(self._by_worker))
        self._leave_if_idle(link)

    def _is_second_way(self, link: WorkerLink, namesake: WorkerLink | None, credits: WorkerCredits) -> bool:
        """Whether the same process is heard at another address already, and this one is no better."""
        if namesake is None or namesake is link or credits.held.worker_generation != namesake.worker_generation:
            return False
        return link.address not in self._wanted or namesake.address in self._wanted

    def _on_loss(self, link: WorkerLink) -> None:
        if self._by_worker.get(link.worker_id) is link:
            # First the news: a worker that is only silent is still told to stop what is taken away from it.
            self._submit(WorkerLost(link.worker_id, link.worker_generation))
            del self._by_worker[link.worker_id]
        WORKERS.set(len(self._by_worker))


class LinkAdapters:
    """What the worker of a link has told of its adapters, and what the dataplane has heard of it."""

    def __init__(self) -> None:
        self._known: tuple[Adapter, ...] = ()
        self._told: AdapterHoldings | None = None

    def hear(self, credits: WorkerCredits) -> None:
        """Changes state: a worker says which adapters it knows when it is first heard, and where that has changed."""
        if credits.known_adapters is not None:
            self._known = credits.known_adapters

    def tell_anew(self) -> None:
        """Have all that is known be news once more."""
        self._told = None

    def news(self, credits: WorkerCredits, uploaded: Iterable[Adapter] = ()) -> AdapterHoldings | None:
        """Return what the worker has, where that is news; else None. It tells by name what need not be loaded first:
        of `uploaded` LoRAs those that it fetched."""
        self.hear(credits)
        resident = set(credits.resident_components)
        own = {adapter.name for adapter in self._known}
        resident_loras = [*self._known, *(adapter for adapter in uploaded if adapter.name not in own)]
        holdings = AdapterHoldings(
            credits.capabilities & ADAPTER_CAPABILITIES,
            frozenset(adapter.digest for adapter in self._known),
            frozenset(adapter.digest for adapter in resident_loras if adapter.name in resident),
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
