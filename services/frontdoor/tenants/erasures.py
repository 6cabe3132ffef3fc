"""Erase the data of deleted tenants after their grace period, or when an operator asks, and write receipts."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pentimento.clients.gateway import GatewayClient
from pentimento.domain.clock import Clock, SteadyClock
from pentimento.domain.erasure import ErasedKind, Erasure, ErasureState, cache_kinds, receipt_of
from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger import Journal
from services.frontdoor.identity import Identity
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.inputs import prefix_of
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.quality.comparison import KeptPairs

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0
# While an erasure runs: a round of the gateway's maintenance deletes objects and vectors every second.
_RUNNING_INTERVAL_S = 1.0
_ERASED_AT_ONCE = 200
_GATEWAY_TIMEOUT_S = 60.0
# A call that was authenticated before the deletion may still arrive.
SETTLED_S = 10.0


@dataclass(frozen=True)
class TenantStores:
    """Hold all that has data of tenants; `gateway` None: there is no cache."""

    journal: Journal
    keeper: ObjectKeeper
    retention: Retention
    pairs: KeptPairs
    gateway: GatewayClient | None


@dataclass
class Erasures:
    """Delete requests, images, inputs, compared pairs and cache entries of deleted tenants. Every step may be repeated:
    a frontdoor that starts continues where the last one was killed. A deleted tenant's data stays for `grace_s`
    seconds; `seal` returns the text of a receipt."""

    stores: TenantStores
    identity: Identity
    clock: Clock
    grace_s: float
    seal: Callable[[Mapping[str, Any]], str]
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    # When this process learnt of a deletion, and why an erasure waits; by the tenant's identity.
    _known_at: dict[str, float] = field(default_factory=dict, init=False)
    _waits_for: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._ledger = self.stores.journal.erasures
        # The tenants' ledger, which cells share: each cell erases its data and writes a receipt.
        self._departures = self.stores.journal.departures
        # Deletion is irreversible: the steady clock does not follow a jump ahead immediately.
        self._steady_clock = SteadyClock(self.clock)

    async def run_forever(self) -> None:
        """Erase at intervals, and after `wake`."""
        while True:
            self._woken.clear()
            try:
                await self.erase_due()
            except PentimentoError as error:
                logger.warning("erasures cannot be read; retrying later", extra={"reason": error.reason})
            with suppress(TimeoutError):
                async with asyncio.timeout(_RUNNING_INTERVAL_S if self._waits_for else _INTERVAL_S):
                    await self._woken.wait()

    async def erase(self, name: str, *, keeps_tenant: bool) -> Erasure:
        """Begin to erase a tenant now. Raises NotFound, StoreUnavailable."""
        asked = await asyncio.wrap_future(self._departures.erase(name, keeps_tenant))
        self._woken.set()
        return asked

    async def erasures(self, name: str = "") -> list[Erasure]:
        """Return the erasures of the name, or all, with this cell's progress. Raises StoreUnavailable."""
        departed = await asyncio.wrap_future(self._departures.erasures(name))
        # Another cell has the progress if its journal has the tenants.
        found = {one.tenant_id: _unknown_here(one) for one in departed}
        found |= {one.tenant_id: one for one in await asyncio.wrap_future(self._ledger.erasures(name))}
        return [replace(one, waits_for=self._waits_for.get(one.tenant_id, "")) for one in found.values()]

    async def erase_due(self) -> None:
        """Continue every erasure that is due. Raises StoreUnavailable if the ledger is away."""
        before = min(self._steady_clock.wall(), self.clock.wall()) - self.grace_s
        if self._departures is not self._ledger:
            known = await asyncio.wrap_future(self._ledger.known())
            departed = await asyncio.wrap_future(self._departures.take(before, known))
            await asyncio.wrap_future(self._ledger.adopt(departed))
        for tenant_id in await asyncio.wrap_future(self._ledger.due(before)):
            try:
                waits_for = await self._continue(tenant_id)
            except PentimentoError as error:
                # The next tenant's erasure may need none of the stores that are away.
                waits_for = error.message
                if self._waits_for.get(tenant_id) != waits_for:
                    logger.warning("a tenant could not be erased; retrying", extra={"reason": error.reason})
            if waits_for:
                self._waits_for[tenant_id] = waits_for
            else:
                self._waits_for.pop(tenant_id, None)

    async def _continue(self, tenant_id: str) -> str:
        """Delete what can be deleted now. Return what the rest waits for; "" once nothing is left."""
        journal, keeper = self.stores.journal, self.stores.keeper
        known_at = self._known_at.setdefault(tenant_id, self.clock.monotonic())
        await asyncio.wrap_future(self._ledger.begin(tenant_id))
        was_empty = not await asyncio.wrap_future(journal.has_requests(tenant_id))
        await self._erase_requests(tenant_id)
        if await asyncio.wrap_future(journal.has_requests(tenant_id)):
            return "requests that have not ended"
        if keeper.has_waiting(tenant_id):
            return "objects that wait in the journal for the object store"
        await self._erase_inputs(tenant_id)
        await self._erase_pairs(tenant_id)
        if left := await self._erase_cache(tenant_id):
            return f"{left} entries and objects of the cache"
        if not was_empty or self.clock.monotonic() - known_at < SETTLED_S:
            # The last request must have ended before this round: it could have added to the cache.
            return "calls that began before the deletion"
        await self._finish(tenant_id)
        return ""

    async def _erase_requests(self, tenant_id: str) -> None:
        """Delete images first: a row that is left after a kill leads to its image. No client can ask for either."""
        journal = self.stores.journal
        while ended := await asyncio.wrap_future(journal.ended_requests(tenant_id, _ERASED_AT_ONCE)):
            for record in ended:
                if record.result is not None and record.result.image.key:
                    await self.stores.keeper.erase(record.result.image.key)
            ids = [record.request.request_id for record in ended]
            gone = await asyncio.wrap_future(journal.erase_requests(tenant_id, ids))
            self.stores.retention.note_gone(gone)

    async def _erase_inputs(self, tenant_id: str) -> None:
        """Delete the inputs, those of pinned requests too. No request uses one any longer."""
        prefix, keeper = prefix_of(tenant_id), self.stores.keeper
        usage = await keeper.usage(prefix)
        found = ErasedKind("inputs", usage.object_count, usage.size_bytes)
        if await asyncio.wrap_future(self._ledger.plan(tenant_id, found)):
            keys = [key async for some in keeper.keys(prefix) for key in some]
            await self._erase_planned(tenant_id, found.kind, keys)

    async def _erase_pairs(self, tenant_id: str) -> None:
        pairs = await self.stores.pairs.of_tenant(tenant_id)
        found = ErasedKind("compared_pairs", len(pairs), sum(pair.size_bytes for pair in pairs))
        if await asyncio.wrap_future(self._ledger.plan(tenant_id, found)):
            await self._erase_planned(tenant_id, found.kind, [pair.key for pair in pairs])

    async def _erase_planned(self, tenant_id: str, kind: str, keys: list[str]) -> None:
        for key in keys:
            await self.stores.keeper.erase(key)
        await asyncio.wrap_future(self._ledger.settle(tenant_id, kind))

    async def _erase_cache(self, tenant_id: str) -> int:
        """Return how many entries and objects the gateway has not deleted yet."""
        if self.stores.gateway is None:
            return 0
        erased = await self.stores.gateway.forget_tenant(tenant_id, timeout_s=_GATEWAY_TIMEOUT_S)
        await asyncio.wrap_future(self._ledger.replace(tenant_id, cache_kinds(erased)))
        return erased.left_count

    async def _finish(self, tenant_id: str) -> None:
        erasure = await asyncio.wrap_future(self._ledger.begin(tenant_id))
        cache = "erased" if self.stores.gateway is not None else "none is configured"
        where = {"frontdoor": self.identity.frontdoor_id, "journal": self.identity.journal_id, "cache": cache}
        finished_at = self.clock.wall()
        receipt = self.seal(receipt_of(erasure, finished_at, where))
        await asyncio.wrap_future(self._ledger.finish(tenant_id, finished_at, receipt))
        del self._known_at[tenant_id]
        logger.info("a tenant is erased; its usage stays")


def _unknown_here(departed: Erasure) -> Erasure:
    return Erasure(departed.tenant, departed.tenant_id, ErasureState.WAITING, departed.deleted_at)
