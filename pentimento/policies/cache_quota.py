"""Which tenant gives way in a cache that several share: max-min fairness over what is short (dominant shares, Ghodsi et
al. 2011). Nobody loses an entry to another while it holds no more than that one; whoever is alone may have all."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pentimento.domain.cache import CacheHolding


@dataclass(frozen=True)
class CacheLimits:
    """Bounds of the whole cache; `tenant_share` (0..1] of either is what one tenant may hold of it at most, and
    `tenant_bytes` what some tenants may, by name."""

    max_entry_count: int
    max_size_bytes: int
    tenant_share: float = 1.0
    tenant_bytes: Mapping[str, int] = field(default_factory=dict)

    def shares(self, holding: CacheHolding) -> tuple[float, float]:
        """Return which shares of the entries and of the bytes a holding takes; above 1 is over the limit."""
        return holding.entry_count / self.max_entry_count, holding.size_bytes / self.max_size_bytes


def gives_way(holdings: Mapping[str, CacheHolding], limits: CacheLimits) -> str | None:
    """Return the tenant whose oldest entry goes next, or None when all is within limits. Whoever holds more than its
    own bytes goes first; then it is the one that holds most of what is over its limit; where nothing is, one that holds
    more than a tenant may."""
    over = _over_own_bytes(holdings, limits.tenant_bytes)
    if over is not None:
        return over
    # Asked for every entry that goes: where many tenants share a cache this is what an eviction takes longest for.
    is_short_of_entries = sum([holding.entry_count for holding in holdings.values()]) > limits.max_entry_count
    is_short_of_bytes = sum([holding.size_bytes for holding in holdings.values()]) > limits.max_size_bytes
    some = [(tenant, holding) for tenant, holding in holdings.items() if holding.entry_count]
    if is_short_of_entries and not is_short_of_bytes:
        return max([(holding.entry_count, tenant) for tenant, holding in some])[1]
    if is_short_of_bytes and not is_short_of_entries:
        return max([(holding.size_bytes, tenant) for tenant, holding in some])[1]
    share, first = max([(max(limits.shares(holding)), tenant) for tenant, holding in some], default=(0.0, None))
    return first if is_short_of_entries or share > limits.tenant_share else None


def _over_own_bytes(holdings: Mapping[str, CacheHolding], limits: Mapping[str, int]) -> str | None:
    """The tenant that is over its own bytes by most."""
    excess = {
        tenant: holding.size_bytes - limits[tenant]
        for tenant, holding in holdings.items()
        if tenant in limits and holding.entry_count and holding.size_bytes > limits[tenant]
    }
    return max(excess, key=lambda tenant: (excess[tenant], tenant), default=None)


def has_room(holding: CacheHolding, limits: CacheLimits) -> bool:
    """Return whether a tenant may hold more, where nothing is evicted."""
    return max(limits.shares(holding)) < limits.tenant_share
