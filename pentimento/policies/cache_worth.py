"""Whether the cache is asked at all, where what it takes is taken from the devices that paint.

A lookup, and what a picture leaves in the cache, take processor time. Where the services share the processors of the
workers, as on a laptop, nothing is painted in that time: a cache whose hits spare less makes the whole slower. It is
asked for one request in a few then, so that it is heard when hits spare more again. A lookup spares no more in the mean
than a hit does, so a few hits that spare too little decide it, however empty the cache is.
"""

from collections import OrderedDict
from dataclasses import dataclass

# One request in so many asks all the same.
_ASKS_ONE_IN = 16
# Lookups of a tenant before any is left out: a cache has to be filled before it can spare anything.
_NEEDED_COUNT = 256
# Or so many hits, also those that give way to a thinned image from noise: that is sooner where hits spare nothing.
_NEEDED_HITS = 16
# The weight of a new lookup, or hit, in the mean.
_FRESHNESS = 1 / 64
# Those who asked longest ago are forgotten beyond it.
_MOST_TENANTS = 4096


@dataclass(slots=True)
class _Account:
    """What lookups spared, and those that found a start: their number, and the mean of the newest in seconds;
    `left_out`: requests since the last lookup."""

    count: int = 0
    spared_s: float = 0.0
    hit_count: int = 0
    hit_spared_s: float = 0.0
    left_out: int = 0

    def note(self, spared_s: float, found: bool) -> None:
        self.count += 1
        self.spared_s += (spared_s - self.spared_s) * max(1 / self.count, _FRESHNESS)
        if found:
            self.hit_count += 1
            self.hit_spared_s += (spared_s - self.hit_spared_s) * max(1 / self.hit_count, _FRESHNESS)


class CacheWorth:
    """What each tenant's lookups spared lately. Seconds are those of a device."""

    def __init__(self, cost_s: float) -> None:
        """`cost_s`: what a lookup and what it leaves behind take of the devices; 0 where they take nothing, so that the
        cache is always asked."""
        self.cost_s = cost_s
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def asks(self, tenant: str) -> bool:
        """Return whether the tenant's next request asks the cache. Changes state: it counts as one that came."""
        account = self._accounts.get(tenant)
        if account is None or not self._is_short(account):
            return True
        account.left_out = (account.left_out + 1) % _ASKS_ONE_IN
        return account.left_out == 0

    def note(self, tenant: str, spared_s: float, *, found: bool = False) -> None:
        """Learn what a lookup spared: 0 for a miss, less than 0 where the start takes longer than noise. `found`: there
        was a start, taken or not."""
        if self.cost_s > 0.0:
            account = self._accounts.setdefault(tenant, _Account())
            account.note(spared_s, found)
            self._accounts.move_to_end(tenant)
            if len(self._accounts) > _MOST_TENANTS:
                self._accounts.popitem(last=False)

    def why_left_out(self, tenant: str) -> str:
        """Return why most of the tenant's requests do not ask, in words; empty where all do."""
        account = self._accounts.get(tenant)
        if account is None or not self._is_short(account):
            return ""
        what, spared_s = (
            ("hit", account.hit_spared_s) if self._hits_are_short(account) else ("lookup", account.spared_s)
        )
        took = f"a {what} spares {spared_s * 1000:.1f} ms and takes {self.cost_s * 1000:g}"
        return f"one request in {_ASKS_ONE_IN} asks the cache: {took}"

    def _is_short(self, account: _Account) -> bool:
        lookups_are_short = account.count >= _NEEDED_COUNT and account.spared_s < self.cost_s
        return lookups_are_short or self._hits_are_short(account)

    def _hits_are_short(self, account: _Account) -> bool:
        return account.hit_count >= _NEEDED_HITS and account.hit_spared_s < self.cost_s
