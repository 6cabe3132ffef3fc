"""What is kept of requests that have ended: for so long, and of each tenant so much; what nobody keeps is swept up."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pentimento.domain.clock import Clock, SteadyClock
from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.records import JournalledRequest
from services.frontdoor.metrics import FORGOTTEN, SWEPT
from services.frontdoor.objects import inputs, results
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.results import Results

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0
_FORGOTTEN_AT_ONCE = 200
# A quota that is exceeded is brought so far below itself, so that not every picture after it costs a commit.
_ROOM = 0.05


@dataclass(frozen=True)
class RetentionLimits:
    """Seconds, bytes of pictures and requests that are kept; seconds from sweep to sweep."""

    retention_s: float
    tenant_result_bytes: int
    tenant_finished_requests: int
    sweep_interval_s: float


class Retention:
    """Rows first, objects second: an object that no row names is swept up, a row without its object would answer."""

    def __init__(
        self,
        journal: Journal,
        keeper: ObjectKeeper,
        held_results: Results,
        held_inputs: Inputs,
        clock: Clock,
        limits: RetentionLimits,
    ) -> None:
        self._journal = journal
        self._keeper = keeper
        self._results = held_results
        self._inputs = held_inputs
        self._clock = clock
        # What is forgotten because it is old is gone for good.
        self._steady_clock = SteadyClock(clock)
        self._limits = limits
        self._bytes: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._over = asyncio.Event()
        self._suspects: set[str] = set()
        self._swept_at = clock.monotonic()
        self._interval_s = min(_INTERVAL_S, limits.sweep_interval_s)
        # When old requests are looked for again; when those are of each tenant that are beyond its share, and held.
        self._old_at = self._swept_at
        self._held_until: dict[str, float] = {}

    async def recover(self) -> None:
        """Changes state: what earlier frontdoors kept is counted."""
        for kept in await asyncio.wrap_future(self._journal.objects.kept()):
            self._bytes[kept.tenant] += kept.size_bytes
            self._requests[kept.tenant] += kept.request_count
        if any(self._is_over(tenant) for tenant in self._requests):
            self._over.set()

    def keep(self, tenant: str, picture_bytes: int) -> None:
        """Changes state: a request of the tenant's has ended, with a picture of that size or none (0)."""
        self._bytes[tenant] += picture_bytes
        self._requests[tenant] += 1
        if self._is_over(tenant):
            self._over.set()

    async def run_forever(self) -> None:
        """Changes state: at intervals, and whenever a tenant has more than its share."""
        while True:
            if self._clock.monotonic() >= self._old_at:
                self._old_at = self._clock.monotonic() + self._interval_s
                await self._attempted(self._forget_old())
            await self._attempted(self._forget_beyond_quotas())
            await self._attempted(self._give_back_pages())
            if self._clock.monotonic() - self._swept_at >= self._limits.sweep_interval_s:
                self._swept_at = self._clock.monotonic()
                await self._attempted(self.sweep())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._old_at - self._clock.monotonic(), 0.0)):
                    await self._over.wait()
            self._over.clear()

    async def sweep(self) -> None:
        """Changes state: an object that nothing named in two sweeps is deleted. One alone could be another process's,
        stored just now and named in a moment. Raises FailedPrecondition where another journal has objects there."""
        await self._keeper.check_owned()
        orphans = await self._orphans(results.PREFIX) | await self._orphans(inputs.PREFIX)
        for key in orphans & self._suspects:
            await self._keeper.delete(key)
            SWEPT.inc()
        self._suspects = orphans - self._suspects

    async def _attempted(self, work: Awaitable[object]) -> None:
        try:
            await work
        except PentimentoError as error:
            logger.warning("retention failed", extra={"reason": error.reason})

    async def _orphans(self, prefix: str) -> set[str]:
        """What is asked after the listing cannot have been stored before it and be unknown."""
        orphans: set[str] = set()
        async for keys in self._keeper.keys(f"{prefix}/"):
            held = self._results.uncommitted | self._inputs.keys()
            named = await asyncio.wrap_future(self._journal.objects.named(keys))
            orphans |= set(keys) - held - named
        return orphans

    def _excess(self, tenant: str) -> tuple[int, int]:
        """Bytes and requests by which the tenant is above its share."""
        more_bytes = self._bytes[tenant] - self._limits.tenant_result_bytes
        more_requests = self._requests[tenant] - self._limits.tenant_finished_requests
        return max(more_bytes, 0), max(more_requests, 0)

    def _is_over(self, tenant: str) -> bool:
        """Return whether something of the tenant's is to be forgotten now."""
        more_bytes, more_requests = self._excess(tenant)
        held = self._clock.monotonic() < self._held_until.get(tenant, -math.inf)
        return more_bytes > 0 or (more_requests > 0 and not held)

    async def _forget_old(self) -> None:
        # By the clock as it is told where that was set back: what ends now ends by that one.
        finished_before = min(self._steady_clock.wall(), self._clock.wall()) - self._limits.retention_s
        while True:
            forgotten = await asyncio.wrap_future(self._journal.forget_finished(finished_before, _FORGOTTEN_AT_ONCE))
            await self.let_go(forgotten)
            if len(forgotten) < _FORGOTTEN_AT_ONCE:
                return

    async def _forget_beyond_quotas(self) -> None:
        for tenant in filter(self._is_over, tuple(self._requests)):
            while self._excess(tenant)[1]:
                count = min(self._excess(tenant)[1], _FORGOTTEN_AT_ONCE)
                oldest = await self._forget_oldest(tenant, count)
                if not oldest:
                    # To find that takes long where they are many, and others wait for the journal meanwhile.
                    self._held_until[tenant] = self._clock.monotonic() + self._interval_s
                    break
                self._held_until.pop(tenant, None)
                await self.let_go(oldest)
            if self._excess(tenant)[0]:
                await self._forget_pictures(tenant)

    async def _forget_oldest(self, tenant: str, count: int) -> Sequence[JournalledRequest]:
        """What ended at a time that is still to come did so before the clock was set back: that goes first, since what
        ends now would seem older."""
        now = self._clock.wall() + 1.0
        older = await asyncio.wrap_future(self._journal.forget_finished(math.inf, count, tenant, now))
        return older or await asyncio.wrap_future(self._journal.forget_finished(now, count, tenant))

    async def _forget_pictures(self, tenant: str) -> None:
        """Oldest first; their requests and how they came to be stay known."""
        target = int(self._limits.tenant_result_bytes * (1 - _ROOM))
        while (more := self._bytes[tenant] - target) > 0:
            forgotten = await asyncio.wrap_future(self._journal.objects.forget_pictures(tenant, more))
            if not forgotten:
                return
            self._bytes[tenant] -= sum(reference.size_bytes for reference in forgotten)
            FORGOTTEN.inc(len(forgotten))
            for reference in forgotten:
                await self._keeper.delete(reference.key)

    async def let_go(self, forgotten: Sequence[JournalledRequest]) -> None:
        """Changes state: rows are gone already; their count and their images follow."""
        for record in forgotten:
            self._requests[record.request.tenant] -= 1
            if record.result is not None and record.result.image.key:
                self._bytes[record.request.tenant] -= record.result.image.size_bytes
        self._bytes, self._requests = +self._bytes, +self._requests
        for record in forgotten:
            if record.result is not None and record.result.image.key:
                await self._keeper.delete(record.result.image.key)

    async def _give_back_pages(self) -> None:
        await asyncio.wrap_future(self._journal.objects.give_back_pages())
