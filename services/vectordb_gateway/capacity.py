"""How much the cache takes: limits, eviction, and read-only when it is full."""

import logging

from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CacheTotals
from pentimento.stores.objects import ObjectStore
from services.vectordb_gateway import metrics
from services.vectordb_gateway.settings import CapacitySettings, Eviction

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

    def refusal(self) -> str:
        """Why nothing is reserved now; empty when it is."""
        totals = self._ledger.totals()
        if totals.open_grant_count >= self._max_open_grants:
            return f"{totals.open_grant_count} grants are open already"
        return self.read_only_reason(totals)

    def read_only_reason(self, totals: CacheTotals) -> str:
        """Why the cache takes nothing new; empty when it does."""
        settings = self._settings
        if self._shortage or settings.eviction is Eviction.FIFO:
            return self._shortage
        if totals.entry_count >= settings.max_entries:
            return f"read-only: all {settings.max_entries} entries are taken"
        if totals.size_bytes >= settings.max_size_bytes:
            return f"read-only: all {settings.max_size_bytes} bytes are taken"
        return ""

    def enforce(self) -> None:
        """Evict down to the limits, and look how much room the object store has."""
        settings = self._settings
        if settings.eviction is Eviction.FIFO:
            evicted = self._ledger.evict_oldest(
                settings.max_entries, settings.max_size_bytes, settings.object_grace_s
            ).result()
            metrics.EVICTIONS.inc(evicted)
        self._look_for_room()
        totals = self._ledger.totals()
        metrics.ENTRIES.set(totals.entry_count)
        metrics.SIZE_BYTES.set(totals.size_bytes)
        metrics.READ_ONLY.set(bool(self.read_only_reason(totals)))

    def _look_for_room(self) -> None:
        free = self._objects.free_bytes()
        needed = self._settings.min_free_bytes
        short = f"read-only: the object store has {free} bytes free, {needed} are kept" if free is not None else ""
        shortage = short if free is not None and free < needed else ""
        if shortage and not self._shortage:
            logger.warning(shortage)
        self._shortage = shortage
