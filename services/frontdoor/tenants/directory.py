"""Hold the tenants in memory: their keys for authentication, their quotas for the dataplane."""

import asyncio
import logging
from collections.abc import Callable

from pentimento.dataplane.events import Event, QuotasReceived
from pentimento.domain.errors import PentimentoError
from pentimento.domain.tenants import TenantBook, TenantQuota
from pentimento.rpc.tokens import KeyRing
from pentimento.stores.ledger.tenant_ledger import TenantLedger
from services.frontdoor.metrics import TENANT_KEYS, TENANTS

logger = logging.getLogger(__name__)

# Seconds until a change by another process is noticed, plus a read.
LOOK_S = 1.0
_NO_QUOTA = TenantQuota()


class TenantDirectory:
    """Hold the latest book of tenants. While the ledger is away the book stays in force: keys still expire, but none
    can be created or revoked."""

    def __init__(self, ledger: TenantLedger, keys: KeyRing, submit: Callable[[Event], None]) -> None:
        self._ledger = ledger
        self._keys = keys
        self._submit = submit
        self._quotas: dict[str, TenantQuota] = {}
        self._revision = 0
        self._reading = asyncio.Lock()

    def quota_of(self, tenant: str) -> TenantQuota:
        return self._quotas.get(tenant, _NO_QUOTA)

    def retentions_s(self) -> dict[str, float]:
        own = {tenant: quota.retention_h for tenant, quota in self._quotas.items()}
        return {tenant: hours * 3600 for tenant, hours in own.items() if hours is not None}

    async def refresh(self) -> None:
        """Read the book again; changes state. Raises StoreUnavailable."""
        # Reads are serialized: an older book never replaces a newer one.
        async with self._reading:
            self._follow(await asyncio.wrap_future(self._ledger.book()))

    async def follow_forever(self) -> None:
        """Read the book whenever its revision differs; changes state."""
        is_away = False
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if await asyncio.wrap_future(self._ledger.revision()) != self._revision:
                    await self.refresh()
                is_away = False
            except PentimentoError as error:
                if not is_away:
                    logger.warning("tenants cannot be read; the known ones stay", extra={"reason": error.reason})
                is_away = True

    def _follow(self, book: TenantBook) -> None:
        self._revision = book.revision
        self._keys.replace(book.keys, {tenant.name: tenant.identity for tenant in book.tenants})
        # Names are included for callers with a token of the file.
        quotas = {name: tenant.quota for tenant in book.tenants for name in (tenant.name, tenant.identity)}
        if quotas != self._quotas:
            self._quotas = quotas
            self._submit(QuotasReceived(tuple(quotas.items())))
        TENANTS.set(len(book.tenants))
        TENANT_KEYS.set(len(book.keys))
