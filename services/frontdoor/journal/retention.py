"""Delete ended requests after a time and beyond a tenant's share, and sweep objects that no row names."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pentimento.domain.clock import Clock, SteadyClock
from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import JournalledRequest
from services.frontdoor.metrics import FORGOTTEN, SWEPT
from services.frontdoor.objects import inputs as input_images
from services.frontdoor.objects import results as images
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.results import Results
from services.frontdoor.settings import RetentionLimits

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0
_FORGOTTEN_AT_ONCE = 200
# A tenant above its quota is brought this share below it, so that not every later image costs a commit.
_ROOM = 0.05


@dataclass
class Retention:
    """Delete rows first, objects second: the sweep deletes an object that no row names, but a row without its object
    would still answer. Requests are stored as `limits` say; those of the tenants in `own_retentions_s` for its
    seconds."""

    journal: Journal
    keeper: ObjectKeeper
    results: Results
    inputs: Inputs
    clock: Clock
    limits: RetentionLimits
    tenant_finished_requests: int
    own_retentions_s: Callable[[], Mapping[str, float]] = dict
    _bytes: Counter[str] = field(default_factory=Counter, init=False)
    _requests: Counter[str] = field(default_factory=Counter, init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _suspects: set[str] = field(default_factory=set, init=False)
    # Until when pins or pending webhooks protected all requests of a tenant beyond its share.
    _held_until: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Deletion for age is irreversible, so it uses the steady clock.
        self._steady_clock = SteadyClock(self.clock)
        self._interval_s = min(_INTERVAL_S, self.limits.sweep_interval_s)
        self._swept_at = self._old_at = self.clock.monotonic()

    async def recover(self) -> None:
        """Count what earlier frontdoors kept."""
        for kept in await asyncio.wrap_future(self.journal.objects.kept()):
            self._bytes[kept.tenant] += kept.size_bytes
            self._requests[kept.tenant] += kept.request_count
        if any(self._is_over(tenant) for tenant in self._requests):
            self._over.set()

    def keep(self, tenant: str, picture_bytes: int) -> None:
        """Count an ended request of the tenant, with an image of that size, or 0 for none."""
        self._bytes[tenant] += picture_bytes
        self._requests[tenant] += 1
        if self._is_over(tenant):
            self._over.set()

    async def run_forever(self) -> None:
        while True:
            if self.clock.monotonic() >= self._old_at:
                self._old_at = self.clock.monotonic() + self._interval_s
                await self._attempted(self._forget_old())
            await self._attempted(self._forget_beyond_quotas())
            await self._attempted(asyncio.wrap_future(self.journal.objects.give_back_pages()))
            if self.clock.monotonic() - self._swept_at >= self.limits.sweep_interval_s:
                self._swept_at = self.clock.monotonic()
                await self._attempted(self.sweep())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._old_at - self.clock.monotonic(), 0.0)):
                    await self._over.wait()
            self._over.clear()

    async def sweep(self) -> None:
        """Delete objects that no row named in two sweeps. In a single sweep, an object could be one that another
        process has just stored and is about to name. Raises FailedPrecondition if another journal has objects there."""
        await self.keeper.check_owned()
        orphans = await self._orphans(images.PREFIX) | await self._orphans(input_images.PREFIX)
        for key in orphans & self._suspects:
            await self.keeper.delete(key)
            SWEPT.inc()
        self._suspects = orphans - self._suspects

    async def _attempted(self, work: Awaitable[Any]) -> None:
        try:
            await work
        except PentimentoError as error:
            logger.warning("retention failed", extra={"reason": error.reason})

    async def _orphans(self, prefix: str) -> set[str]:
        """Return the keys that no row or process names. The names are read after the listing, so every listed object
        that is in use is known by then."""
        orphans: set[str] = set()
        async for keys in self.keeper.keys(f"{prefix}/"):
            held = self.results.uncommitted | self.inputs.keys()
            named = await asyncio.wrap_future(self.journal.objects.named(keys))
            orphans |= set(keys) - held - named
        return orphans

    def _excess(self, tenant: str) -> tuple[int, int]:
        more_bytes = self._bytes[tenant] - self.limits.tenant_result_bytes
        more_requests = self._requests[tenant] - self.tenant_finished_requests
        return max(more_bytes, 0), max(more_requests, 0)

    def _is_over(self, tenant: str) -> bool:
        """Return whether data of the tenant must be deleted now."""
        more_bytes, more_requests = self._excess(tenant)
        held = self.clock.monotonic() < self._held_until.get(tenant, -math.inf)
        return more_bytes > 0 or (more_requests > 0 and not held)

    async def _forget_old(self) -> None:
        # The wall clock counts if it was set back: requests that end now end by it.
        now = min(self._steady_clock.wall(), self.clock.wall())
        own_s = self.own_retentions_s()
        for tenant, retention_s in own_s.items():
            await self._forget_ended(now - retention_s, tenant)
        await self._forget_ended(now - self.limits.result_retention_h * 3600, but_tenants=tuple(own_s))

    async def _forget_ended(self, before: float, tenant: str = "", but_tenants: Sequence[str] = ()) -> None:
        while True:
            forgotten = await asyncio.wrap_future(
                self.journal.forget_finished(before, _FORGOTTEN_AT_ONCE, tenant, but_tenants=but_tenants)
            )
            await self.let_go(forgotten)
            if len(forgotten) < _FORGOTTEN_AT_ONCE:
                return

    async def _forget_beyond_quotas(self) -> None:
        for tenant in filter(self._is_over, tuple(self._requests)):
            while self._excess(tenant)[1]:
                count = min(self._excess(tenant)[1], _FORGOTTEN_AT_ONCE)
                oldest = await self._forget_oldest(tenant, count)
                if not oldest:
                    # The search is slow with many requests, and blocks other uses of the journal.
                    self._held_until[tenant] = self.clock.monotonic() + self._interval_s
                    break
                self._held_until.pop(tenant, None)
                await self.let_go(oldest)
            if self._excess(tenant)[0]:
                await self._forget_pictures(tenant)

    async def _forget_oldest(self, tenant: str, count: int) -> Sequence[JournalledRequest]:
        """Delete requests that ended in the future first: they ended before the clock was set back, and requests that
        end now would seem older."""
        now = self.clock.wall() + 1.0
        older = await asyncio.wrap_future(self.journal.forget_finished(math.inf, count, tenant, now))
        return older or await asyncio.wrap_future(self.journal.forget_finished(now, count, tenant))

    async def _forget_pictures(self, tenant: str) -> None:
        """Delete the oldest images; their requests and provenance remain."""
        target = int(self.limits.tenant_result_bytes * (1 - _ROOM))
        while (more := self._bytes[tenant] - target) > 0:
            forgotten = await asyncio.wrap_future(self.journal.objects.forget_pictures(tenant, more))
            if not forgotten:
                return
            self._bytes[tenant] -= sum(reference.size_bytes for reference in forgotten)
            FORGOTTEN.inc(len(forgotten))
            for reference in forgotten:
                await self.keeper.delete(reference.key)

    async def let_go(self, forgotten: Sequence[JournalledRequest]) -> None:
        """Adjust the counts for deleted rows, and delete their images."""
        self.note_gone(forgotten)
        for record in forgotten:
            if record.result is not None and record.result.image.key:
                await self.keeper.delete(record.result.image.key)

    def note_gone(self, forgotten: Sequence[JournalledRequest]) -> None:
        for record in forgotten:
            self._requests[record.request.tenant] -= 1
            if record.result is not None and record.result.image.key:
                self._bytes[record.request.tenant] -= record.result.image.size_bytes
        self._bytes, self._requests = +self._bytes, +self._requests
