"""How much the cache takes: limits, eviction, and read-only when it is full."""

import logging

from pentimento.policies.cache_quota import gives_way, has_room
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CacheTotals
from pentimento.stores.objects import ObjectStore
from services.vectordb_gateway import metrics
from services.vectordb_gateway.settings import CapacitySettings, EvictionChoice

logger = logging.getLogger(__name__)


class Capacity:
    """Blocking. Methods raise StoreUnavailable."""

    def __init__(
        self, ledger: CacheLedger, objects: ObjectStore, settings: CapacitySettings, max_open_grants: int
    ) -> None:
        self._ledger = ledger
        self._objects = objects
        self._settings = settings
        self._max_open_grants = max_open_grants
        self._shortage = ""

    def refusal(self, tenant: str) -> str:
        """Why nothing is reserved for the tenant now; empty when it is."""
        totals = self._ledger.totals()
        if totals.open_grant_count >= self._max_open_grants:
            return f"{totals.open_grant_count} grants are open already"
        return self.read_only_reason(totals) or self._over_quota(tenant)

    def read_only_reason(self, totals: CacheTotals) -> str:
        """Why the cache takes nothing new; empty when it does."""
        settings = self._settings
        if self._shortage or settings.eviction is EvictionChoice.FIFO:
            return self._shortage
        if totals.entry_count >= settings.max_entries:
            return f"read-only: all {settings.max_entries} entries are taken"
        if totals.size_bytes >= settings.max_size_bytes:
            return f"read-only: all {settings.max_size_bytes} bytes are taken"
        return ""

    def enforce(self) -> None:
        """Evict down to the limits, and look how much room the object store has."""
        if self._settings.eviction is EvictionChoice.FIFO and self._may_be_over():
            limits = self._settings.limits()
            evicted = self._ledger.evict(lambda held: gives_way(held, limits), self._settings.object_grace_s).result()
            metrics.EVICTIONS.inc(evicted)
        self._look_for_room()
        totals = self._ledger.totals()
        metrics.ENTRIES.set(totals.entry_count)
        metrics.SIZE_BYTES.set(totals.size_bytes)
        metrics.READ_ONLY.set(bool(self.read_only_reason(totals)))

    def _may_be_over(self) -> bool:
        """What tenants hold is summed up only where it may matter."""
        settings, totals = self._settings, self._ledger.totals()
        is_over = totals.entry_count > settings.max_entries or totals.size_bytes > settings.max_size_bytes
        return is_over or settings.tenant_share < 1.0

    def _over_quota(self, tenant: str) -> str:
        """What is evicted later makes room for itself; where nothing is, a tenant that holds its share waits."""
        settings = self._settings
        if settings.eviction is EvictionChoice.FIFO or settings.tenant_share == 1.0:
            return ""
        holding = self._ledger.holdings().get(tenant)
        if holding is None or has_room(holding, settings.limits()):
            return ""
        return f"the tenant holds its {settings.tenant_share:.0%} of the cache"

    def _look_for_room(self) -> None:
        free = self._objects.free_bytes()
        needed = self._settings.min_free_bytes
        short = f"read-only: the object store has {free} bytes free, {needed} are kept" if free is not None else ""
        shortage = short if free is not None and free < needed else ""
        if shortage and not self._shortage:
            logger.warning(shortage)
        self._shortage = shortage
