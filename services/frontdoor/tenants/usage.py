"""Meter the usage of tenants: count in memory, and write to the ledger every few seconds in the background."""

import asyncio
import logging

from pentimento.domain.clock import JUMP_S, Clock, SteadyClock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import MAX_COST_S
from pentimento.domain.image_request import Completed
from pentimento.domain.tenants import (
    HOUR_S,
    USAGE_KEPT_S,
    UsageCounter,
    UsagePeriod,
    UsageRow,
    refused_counter,
    usage_periods,
)
from pentimento.rpc import spawn_detached
from pentimento.stores.ledger.tenant_ledger import TenantLedger

logger = logging.getLogger(__name__)

# A process that dies loses the counts of this many seconds.
FLUSH_S = 5.0
FORGET_S = 3600.0
UsageKey = tuple[str, int, str]
# Counts that wait for an absent ledger; beyond this number no new one begins.
MAX_WAITING = 100_000


class UsageMeter:
    """Count by tenant, hour of UTC and counter."""

    def __init__(self, ledger: TenantLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._steady_clock = SteadyClock(clock)
        self._counts: dict[UsageKey, float] = {}
        self._flushing = asyncio.Lock()

    def accepted(self, tenant: str) -> None:
        self._add(tenant, UsageCounter.REQUESTS.value, 1)

    def refused(self, tenant: str, reason: str, count: int = 1) -> None:
        self._add(tenant, refused_counter(reason), count)

    def delivered(self, tenant: str, picture: Completed) -> None:
        provenance = picture.provenance
        pixels = provenance.spec.width_px * provenance.spec.height_px
        self._add(tenant, UsageCounter.PICTURES.value, 1)
        self._add(tenant, UsageCounter.PAINTED_COST.value, pixels * provenance.steps_run)
        # The worker reports this time. A value that is not a time could not be added, and would block all further
        # writes.
        if 0.0 <= provenance.device_seconds <= MAX_COST_S:
            self._add(tenant, UsageCounter.DEVICE_S.value, provenance.device_seconds)
        if provenance.steps_saved:
            self._add(tenant, UsageCounter.CACHE_HITS.value, 1)

    def cached(self, tenant: str, size_bytes: int) -> None:
        self._add(tenant, UsageCounter.CACHED_BYTES.value, size_bytes)

    async def periods(self, tenant: str, from_at: float, to_at: float, length_s: int) -> tuple[UsagePeriod, ...]:
        """Return a tenant's usage by hours or days, including counts not yet written. Raises StoreUnavailable."""
        await self.flush()
        rows = await asyncio.wrap_future(self._ledger.usage(tenant, from_at, to_at))
        return usage_periods(rows, length_s)

    async def flush(self) -> None:
        """Write the counts; counts that cannot be written wait for the next time. Changes state. Raises
        StoreUnavailable, StoreFull."""
        # The caller may be cancelled: counts that the ledger is writing would then be counted twice.
        await asyncio.shield(spawn_detached(self._write(), "write usage"))

    async def _write(self) -> None:
        async with self._flushing:
            counts, self._counts = self._counts, {}
            if not counts:
                return
            try:
                await asyncio.wrap_future(
                    self._ledger.add_usage([UsageRow(*key, amount) for key, amount in counts.items()])
                )
            except BaseException:
                for key, amount in counts.items():
                    self._counts[key] = self._counts.get(key, 0.0) + amount
                raise

    async def run_forever(self) -> None:
        """Write every few seconds, and delete old usage; changes state."""
        is_away, forgot_at = False, float("-inf")
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
                if self._clock.monotonic() - forgot_at >= FORGET_S and not self._is_ahead():
                    await asyncio.wrap_future(self._ledger.forget(self._clock.wall() - USAGE_KEPT_S))
                    forgot_at = self._clock.monotonic()
                is_away = False
            except PentimentoError as error:
                if not is_away:
                    logger.warning("usage cannot be written; retrying later", extra={"reason": error.reason})
                is_away = True

    def _is_ahead(self) -> bool:
        """Return whether the clock has jumped ahead and is not trusted yet: deleted usage and keys cannot be
        restored."""
        return self._clock.wall() - self._steady_clock.wall() > JUMP_S

    def _add(self, tenant: str, counter: str, amount: float) -> None:
        hour_at = int(self._clock.wall()) // HOUR_S * HOUR_S
        key = (tenant, hour_at, counter)
        if amount and (len(self._counts) < MAX_WAITING or key in self._counts):
            self._counts[key] = self._counts.get(key, 0.0) + amount
