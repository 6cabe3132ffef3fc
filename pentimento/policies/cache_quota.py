"""Choose the tenant that loses an entry of a shared cache: max-min fairness over the scarce resource (dominant shares,
Ghodsi et al. 2011). A tenant loses entries only to tenants that hold less; a single tenant may use the whole cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pentimento.domain.cache import CacheHolding


@dataclass(frozen=True)
class CacheLimits:
    """Bound the whole cache in entries and bytes. `tenant_share` (0..1]: the largest share of either that one tenant
    may hold. `tenant_bytes`: byte limits of some tenants, by name."""

    max_entry_count: int
    max_size_bytes: int
    tenant_share: float = 1.0
    tenant_bytes: Mapping[str, int] = field(default_factory=dict)

    def shares(self, holding: CacheHolding) -> tuple[float, float]:
        """Return the shares of the entries and of the bytes that a holding takes; above 1 is over the limit."""
        return holding.entry_count / self.max_entry_count, holding.size_bytes / self.max_size_bytes


def gives_way(holdings: Mapping[str, CacheHolding], limits: CacheLimits) -> str | None:
    """Return the tenant that loses its oldest entry next; None if all is within limits.

    A tenant over its own bytes comes first, then the largest holder of the resource that is over its limit. If none is,
    a tenant over `tenant_share`.
    """
    over = _over_own_bytes(holdings, limits.tenant_bytes)
    if over is not None:
        return over
    # Runs for every evicted entry: with many tenants it is the slowest part of an eviction.
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
    """Return the tenant that exceeds its own bytes by most; None if there is none."""
    excess = {
        tenant: holding.size_bytes - limits[tenant]
        for tenant, holding in holdings.items()
        if tenant in limits and holding.entry_count and holding.size_bytes > limits[tenant]
    }
    return max(excess, key=lambda tenant: (excess[tenant], tenant), default=None)


def has_room(holding: CacheHolding, limits: CacheLimits) -> bool:
    """Return whether a tenant may hold more, if nothing is evicted."""
    return max(limits.shares(holding)) < limits.tenant_share
