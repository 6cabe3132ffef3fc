"""Delete the data of deleted tenants after their grace period."""

import asyncio
import logging

from pentimento.clients.gateway import GatewayClient
from pentimento.domain.clock import Clock, SteadyClock
from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger import Journal
from services.frontdoor.journal.retention import Retention
from services.frontdoor.quality.kept_pairs import KeptPairs

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0
_FORGOTTEN_AT_ONCE = 200
_GATEWAY_TIMEOUT_S = 60.0


class Departures:
    """Delete the requests, images, compared pairs and cache entries of deleted tenants. Their usage remains."""

    def __init__(
        self,
        journal: Journal,
        retention: Retention,
        pairs: KeptPairs,
        gateway: GatewayClient | None,
        clock: Clock,
        grace_s: float,
    ) -> None:
        self._journal = journal
        self._retention = retention
        self._pairs = pairs
        self._gateway = gateway
        self._clock = clock
        # Deletion is irreversible: the steady clock does not follow a jump ahead immediately.
        self._steady_clock = SteadyClock(clock)
        self._grace_s = grace_s

    async def run_forever(self) -> None:
        """Look for deleted tenants at intervals; changes state."""
        while True:
            try:
                await self.forget_departed()
            except PentimentoError as error:
                logger.warning(
                    "data of deleted tenants could not be deleted; retrying later", extra={"reason": error.reason}
                )
            await asyncio.sleep(_INTERVAL_S)

    async def forget_departed(self) -> None:
        """Delete the data of tenants after their grace period; changes state. A running request keeps its tenant for
        another round. Raises StoreUnavailable, Unavailable."""
        now = min(self._steady_clock.wall(), self._clock.wall())
        for tenant_id in await asyncio.wrap_future(self._journal.tenants.departed(now - self._grace_s)):
            was_empty = not await asyncio.wrap_future(self._journal.has_requests(tenant_id))
            await self._forget_requests(tenant_id)
            await self._pairs.forget_tenant(tenant_id)
            if self._gateway is not None:
                await self._gateway.forget_tenant(tenant_id, timeout_s=_GATEWAY_TIMEOUT_S)
            if was_empty:
                # The last request ended before this round, so no request adds to the cache any longer.
                await asyncio.wrap_future(self._journal.tenants.note_purged(tenant_id))
                logger.info("the data of a deleted tenant is deleted; its usage stays")

    async def _forget_requests(self, tenant_id: str) -> None:
        while forgotten := await asyncio.wrap_future(self._journal.forget_tenant(tenant_id, _FORGOTTEN_AT_ONCE)):
            await self._retention.let_go(forgotten)
