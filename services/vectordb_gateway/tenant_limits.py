"""How many bytes the cache keeps of tenants that have a bound of their own: as frontdoors said last to any gateway over
the ledger, before this start or since."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from threading import Lock

from pentimento.stores.ledger.cache_ledger import CacheLedger

logger = logging.getLogger(__name__)


class TenantLimits:
    """`set` is for the loop, and waits for nothing; `read` is for threads."""

    def __init__(self, ledger: CacheLedger) -> None:
        self._ledger = ledger
        self._lock = Lock()
        self._known: dict[str, int | None] = {}
        # What the ledger has not got yet: the newest value of each, and it alone.
        self._unwritten: dict[str, int | None] = {}

    def set(self, tenant: str, most_bytes: int | None) -> None:
        """Keep at most so much of the tenant from here on, None for no bound of its own; changes state."""
        with self._lock:
            if self._known.get(tenant) == most_bytes:
                return
            self._known[tenant] = self._unwritten[tenant] = most_bytes
        self._write(tenant, most_bytes)

    def of(self, tenant: str) -> int | None:
        """Return the tenant's bound, as it was last read or set."""
        return self._known.get(tenant)

    def read(self) -> Mapping[str, int]:
        """Return what is in force, as the ledger has it now, and have it write what it could not. Raises
        StoreUnavailable."""
        # Before the ledger is read: what it writes meanwhile is in one of the two.
        with self._lock:
            waiting = dict(self._unwritten)
        found = self._ledger.tenant_limits()
        with self._lock:
            self._known = {**found, **waiting, **self._unwritten}
            again = {tenant: most for tenant, most in self._unwritten.items() if waiting.get(tenant, -1) == most}
            known = {tenant: most for tenant, most in self._known.items() if most is not None}
        for tenant, most_bytes in again.items():
            self._write(tenant, most_bytes)
        return known

    def _write(self, tenant: str, most_bytes: int | None) -> None:
        self._ledger.limit_tenant(tenant, most_bytes).add_done_callback(partial(self._written, tenant, most_bytes))

    def _written(self, tenant: str, most_bytes: int | None, writing: "Future[None]") -> None:
        if writing.cancelled() or (error := writing.exception()) is not None:
            # The next round tries again.
            logger.warning("the bytes of a tenant are not in the ledger yet", extra={"why": str(error)})
            return
        with self._lock:
            if self._unwritten.get(tenant, -1) == most_bytes:
                del self._unwritten[tenant]
