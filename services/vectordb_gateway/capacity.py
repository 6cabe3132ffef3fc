"""How much the cache takes: limits, eviction, and read-only when it is full."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from pentimento.domain.access import EvictionRule
from pentimento.policies.cache_quota import CacheLimits, gives_way, has_room
from pentimento.policies.eviction_rules import eviction_rule
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CacheTotals
from pentimento.stores.objects import ObjectStore
from services.vectordb_gateway import metrics
from services.vectordb_gateway.settings import CapacitySettings, EvictionChoice, GrantSettings
from services.vectordb_gateway.tenant_limits import TenantLimits

logger = logging.getLogger(__name__)

# A limit that nobody reaches.
_NO_LIMIT_BYTES = 2**62
# Five latents and an image, as the papers capture them.
_ITEMS_OF_RUN = 6


class Capacity:
    """Blocking. Methods raise StoreUnavailable."""

    def __init__(
        self,
        ledger: CacheLedger,
        objects: ObjectStore,
        settings: CapacitySettings,
        grants: GrantSettings,
        eviction: Callable[[], EvictionChoice] | None = None,
    ) -> None:
        """`eviction` says which rule is in force now; None: always that of the settings."""
        self._ledger = ledger
        self._objects = objects
        self._settings = settings
        self._grants = grants
        self._eviction = eviction or (lambda: settings.eviction or EvictionChoice.FIFO)
        self._followed: EvictionChoice | None = None
        self._shortage = ""
        self._store_bytes = 0
        # The newest entry when the last round began: what came after it makes others give way, not itself.
        self._new_after: int | None = None
        self.tenants = TenantLimits(ledger)

    def refusal(self, tenant: str) -> str:
        """Why nothing is reserved for the tenant now; empty when it is."""
        totals = self._ledger.totals()
        if totals.open_grant_count >= self._grants.max_open_grants:
            return f"{totals.open_grant_count} grants are open already"
        if self._ledger.open_grant_count(tenant) >= self._grants.tenant_open_grants:
            return f"{self._grants.tenant_open_grants} grants of the tenant are open already"
        return self.read_only_reason(totals) or self._over_quota(tenant)

    def read_only_reason(self, totals: CacheTotals) -> str:
        """Why the cache takes nothing new; empty when it does."""
        settings = self._settings
        if self._shortage or self._eviction() is not EvictionChoice.NONE:
            return self._shortage
        if totals.entry_count >= settings.max_entries:
            return f"read-only: all {settings.max_entries} entries are taken"
        if totals.size_bytes >= settings.max_size_bytes:
            return f"read-only: all {settings.max_size_bytes} bytes are taken"
        return ""

    def follow_rule(self, *, hits_add: bool) -> None:
        """Have the ledger rank what it holds by the rule in force, where that is another one than before."""
        chosen = self._eviction()
        if chosen is not self._followed:
            rule = rule_of(self._settings, chosen, self._ledger.totals(), hits_add)
            self._ledger.follow(rule).result()
            self._followed = chosen

    def enforce(self) -> None:
        """Evict down to the limits, and look how much room the object store has."""
        tenant_bytes, newest = self.tenants.read(), self._ledger.newest_number()
        if self._eviction() is not EvictionChoice.NONE and self._may_be_over(tenant_bytes):
            self._evict(replace(self._settings.limits(), tenant_bytes=tenant_bytes))
        self._new_after = newest
        self._look_for_room()
        totals = self._ledger.totals()
        metrics.ENTRIES.set(totals.entry_count)
        metrics.SIZE_BYTES.set(totals.size_bytes)
        metrics.READ_ONLY.set(bool(self.read_only_reason(totals)))

    def _evict(self, limits: CacheLimits) -> None:
        """FIFO is of entries, as in MoDM. Under the other rules entries go where there are too many of them, and single
        latents and images where bytes are short."""
        entry_limits, by_items = limits, self._eviction() != EvictionChoice.FIFO
        when = (self._settings.object_grace_s, self._new_after)
        if by_items:
            entry_limits = replace(limits, max_size_bytes=_NO_LIMIT_BYTES, tenant_bytes={})
        metrics.EVICTIONS.inc(self._ledger.evict(lambda held: gives_way(held, entry_limits), *when).result())
        if by_items:
            items = self._ledger.evict_items(lambda held: gives_way(held, limits), *when).result()
            metrics.ITEM_EVICTIONS.inc(items)

    def _may_be_over(self, tenant_bytes: Mapping[str, int]) -> bool:
        """Others that write wait for an eviction: there is one only where it may matter."""
        settings, totals = self._settings, self._ledger.totals()
        is_over = totals.entry_count > settings.max_entries or totals.size_bytes > settings.max_size_bytes
        return is_over or settings.tenant_share < 1.0 or bool(tenant_bytes)

    def _over_quota(self, tenant: str) -> str:
        """What is evicted later makes room for itself; where nothing is, a tenant that holds its share waits."""
        settings, most_bytes = self._settings, self.tenants.of(tenant)
        if most_bytes == 0:
            return "the tenant may keep nothing in the cache"
        if self._eviction() is not EvictionChoice.NONE or (settings.tenant_share == 1.0 and most_bytes is None):
            return ""
        holding = self._ledger.holding(tenant)
        if most_bytes is not None and holding.size_bytes >= most_bytes:
            return f"the tenant holds its {most_bytes} bytes of the cache"
        if has_room(holding, settings.limits()):
            return ""
        return f"the tenant holds its {settings.tenant_share:.0%} of the cache"

    def measure_store(self) -> None:
        """Look what this cache has in the object store, whether the ledger counts it as live or not. What stays for a
        pin alone is the tenants' quota of pins, and not counted against the cache."""
        used = self._objects.usage(f"cache/{self._ledger.cache_id}/")
        metrics.STORE_OBJECTS.set(used.object_count)
        metrics.STORE_SIZE_BYTES.set(used.size_bytes)
        pinned_count, pinned_bytes = self._ledger.pinned_totals()
        metrics.PINNED_OBJECTS.set(pinned_count)
        metrics.PINNED_BYTES.set(pinned_bytes)
        self._store_bytes = used.size_bytes - pinned_bytes

    def _look_for_room(self) -> None:
        free = self._objects.free_bytes()
        needed, most = self._settings.min_free_bytes, self._settings.max_store_bytes
        shortage = ""
        if free is not None and free < needed:
            shortage = f"read-only: the object store has {free} bytes free, {needed} are kept"
        elif most and self._store_bytes > most:
            shortage = f"read-only: the cache has {self._store_bytes} bytes in the object store, {most} are allowed"
        if shortage and not self._shortage:
            logger.warning(shortage)
        self._shortage = shortage


def rule_of(settings: CapacitySettings, eviction: EvictionChoice, totals: CacheTotals, hits_add: bool) -> EvictionRule:
    """The rule that ranks what the cache holds. How many items a full cache has follows from the limit on entries, or
    from that on bytes and the size of those it has now."""
    item_count = settings.max_entries * _ITEMS_OF_RUN
    if totals.size_bytes:
        item_count = min(item_count, settings.max_size_bytes * totals.object_count // totals.size_bytes)
    name = "fifo" if eviction is EvictionChoice.NONE else eviction.value
    # Every start finds another mean size; a memory twice as long changes little, and every change ranks all anew.
    return eviction_rule(name, 1 << max(item_count, 1).bit_length(), hits_add=hits_add)
