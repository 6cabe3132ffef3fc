"""Limits of the cache: eviction, read-only when full, and bytes of single tenants."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Lock

from pentimento.domain.access import EvictionRule
from pentimento.policies.cache_quota import CacheLimits, gives_way, has_room
from pentimento.policies.eviction_rules import eviction_rule
from pentimento.policies.followed_cache import DEFAULT_EVICTION
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import CacheTotals
from pentimento.stores.objects import ObjectStore
from services.vectordb_gateway import metrics
from services.vectordb_gateway.settings import CapacitySettings, EvictionChoice, GatewayBounds

logger = logging.getLogger(__name__)

# A limit that is never reached.
_NO_LIMIT_BYTES = 2**62
# Grants neither committed nor released: in all, and of one tenant. Far more than a fleet's requests at once.
MAX_OPEN_GRANTS, MAX_TENANT_GRANTS = 4096, 1024
# Five latents and an image, as the papers capture them.
_ITEMS_OF_RUN = 6


class TenantLimits:
    """`set` is for the loop, and waits for nothing; `read` is for threads."""

    def __init__(self, ledger: CacheLedger) -> None:
        self._ledger = ledger
        self._lock = Lock()
        self._known: dict[str, int | None] = {}
        # The newest value of each tenant that the ledger has not written yet.
        self._unwritten: dict[str, int | None] = {}

    def set(self, tenant: str, most_bytes: int | None) -> None:
        """Limit the tenant's bytes from here on, None for no own limit; changes state."""
        with self._lock:
            if self._known.get(tenant) == most_bytes:
                return
            self._known[tenant] = self._unwritten[tenant] = most_bytes
        self._write(tenant, most_bytes)

    def of(self, tenant: str) -> int | None:
        """Return the tenant's bound, as it was last read or set."""
        return self._known.get(tenant)

    def read(self) -> Mapping[str, int]:
        """Return the limits in force, as the ledger has them now, and write again what it could not take. Raises
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


class Capacity:
    """Blocking. Methods raise StoreUnavailable."""

    def __init__(
        self,
        ledger: CacheLedger,
        objects: ObjectStore,
        settings: CapacitySettings,
        bounds: GatewayBounds,
        eviction: Callable[[], EvictionChoice] | None = None,
    ) -> None:
        """`eviction` says which rule is in force now; None: always that of the settings."""
        self._ledger = ledger
        self._objects = objects
        self._settings = settings
        self._bounds = bounds
        self._eviction = eviction or (lambda: settings.eviction or EvictionChoice(DEFAULT_EVICTION))
        self._followed: EvictionChoice | None = None
        self._shortage = ""
        self._store_bytes = 0
        # The newest entry when the last round began: what came after it makes others give way, not itself.
        self._new_after: int | None = None
        self.tenants = TenantLimits(ledger)

    def refusal(self, tenant: str) -> str:
        """Return why nothing is reserved for the tenant now; empty if it may reserve."""
        totals = self._ledger.totals()
        if totals.open_grant_count >= MAX_OPEN_GRANTS:
            return f"{totals.open_grant_count} grants are open already"
        if self._ledger.open_grant_count(tenant) >= MAX_TENANT_GRANTS:
            return f"{MAX_TENANT_GRANTS} grants of the tenant are open already"
        return self.read_only_reason(totals) or self._over_quota(tenant)

    def read_only_reason(self, totals: CacheTotals) -> str:
        """Return why the cache takes nothing new; empty if it takes entries."""
        settings = self._settings
        if self._shortage or self._eviction() is not EvictionChoice.NONE:
            return self._shortage
        if totals.entry_count >= settings.max_entries:
            return f"read-only: all {settings.max_entries} entries are taken"
        if totals.size_bytes >= settings.max_size_bytes:
            return f"read-only: all {settings.max_size_bytes} bytes are taken"
        return ""

    def follow_rule(self) -> None:
        """Have the ledger rank what it holds by the rule in force, where that is another one than before."""
        chosen = self._eviction()
        if chosen is not self._followed:
            rule = rule_of(self._settings, chosen, self._ledger.totals())
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
        """Evict down to the limits. FIFO evicts entries, as in MoDM. The other rules evict entries if there are too
        many, and single latents and images if bytes are short."""
        entry_limits, by_items = limits, self._eviction() != EvictionChoice.FIFO
        when = (self._bounds.object_grace_s, self._new_after)
        if by_items:
            entry_limits = replace(limits, max_size_bytes=_NO_LIMIT_BYTES, tenant_bytes={})
        metrics.EVICTIONS.inc(self._ledger.evict(lambda held: gives_way(held, entry_limits), *when).result())
        if by_items:
            items = self._ledger.evict_items(lambda held: gives_way(held, limits), *when).result()
            metrics.ITEM_EVICTIONS.inc(items)

    def _may_be_over(self, tenant_bytes: Mapping[str, int]) -> bool:
        """Return whether a limit may be exceeded: other writers wait for an eviction, so none runs without need."""
        settings, totals = self._settings, self._ledger.totals()
        is_over = totals.entry_count > settings.max_entries or totals.size_bytes > settings.max_size_bytes
        return is_over or settings.tenant_share < 1.0 or bool(tenant_bytes)

    def _over_quota(self, tenant: str) -> str:
        """Return why the tenant must wait. Eviction makes room for itself; without it a tenant that holds its share
        waits."""
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
        needed, most = self._bounds.min_free_bytes, self._settings.max_store_bytes
        shortage = ""
        if free is not None and free < needed:
            shortage = f"read-only: the object store has {free} bytes free, {needed} are kept"
        elif most and self._store_bytes > most:
            shortage = f"read-only: the cache has {self._store_bytes} bytes in the object store, {most} are allowed"
        if shortage and not self._shortage:
            logger.warning(shortage)
        self._shortage = shortage


def rule_of(settings: CapacitySettings, eviction: EvictionChoice, totals: CacheTotals) -> EvictionRule:
    """Return the rule that ranks the cached items. The number of items of a full cache follows from the limit on
    entries, or from the limit on bytes and the present mean size."""
    item_count = settings.max_entries * _ITEMS_OF_RUN
    if totals.size_bytes:
        item_count = min(item_count, settings.max_size_bytes * totals.object_count // totals.size_bytes)
    name = "fifo" if eviction is EvictionChoice.NONE else eviction.value
    # Every start finds another mean size. A memory twice as long changes little, and every change ranks all items
    # again.
    return eviction_rule(name, 1 << max(item_count, 1).bit_length())
