"""Whether the cache is asked at all, where what it takes is taken from the devices that paint.

A lookup, and what a picture leaves in the cache, take processor time. Where the services share the processors of the
workers, as on a laptop, nothing is painted in that time: a cache whose hits spare less makes the whole slower. It is
asked for one request in a few then, so that it is heard when hits spare more again.
"""

from collections import OrderedDict
from dataclasses import dataclass

# One request in so many asks all the same.
_ASKS_ONE_IN = 16
# Lookups of a tenant before any is left out: a cache has to be filled before it can spare anything.
_NEEDED_COUNT = 256
# The weight of a new lookup in the mean.
_FRESHNESS = 1 / 64
# Those who asked longest ago are forgotten beyond it.
_MOST_TENANTS = 4096


@dataclass(slots=True)
class _Account:
    """What lookups spared: their number, the mean of the newest in seconds, and the requests since the last one."""

    count: int = 0
    spared_s: float = 0.0
    left_out: int = 0

    def note(self, spared_s: float) -> None:
        self.count += 1
        self.spared_s += (spared_s - self.spared_s) * max(1 / self.count, _FRESHNESS)


class CacheWorth:
    """What each tenant's lookups spared lately. Seconds are those of a device."""

    def __init__(self, cost_s: float) -> None:
        """`cost_s`: what a lookup and what it leaves behind take of the devices; 0 where they take nothing, so that the
        cache is always asked."""
        self._cost_s = cost_s
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def asks(self, tenant: str) -> bool:
        """Return whether the tenant's next request asks the cache. Changes state: it counts as one that came."""
        account = self._accounts.get(tenant)
        if account is None or not self._is_short(account):
            return True
        account.left_out = (account.left_out + 1) % _ASKS_ONE_IN
        return account.left_out == 0

    def note(self, tenant: str, spared_s: float) -> None:
        """Learn what a lookup spared: 0 for a miss, less than 0 where the start takes longer than noise."""
        if self._cost_s > 0.0:
            account = self._accounts.setdefault(tenant, _Account())
            account.note(spared_s)
            self._accounts.move_to_end(tenant)
            if len(self._accounts) > _MOST_TENANTS:
                self._accounts.popitem(last=False)

    def why_left_out(self, tenant: str) -> str:
        """Return why most of the tenant's requests do not ask, in words; empty where all do."""
        account = self._accounts.get(tenant)
        if account is None or not self._is_short(account):
            return ""
        spared_ms, cost_ms = account.spared_s * 1000, self._cost_s * 1000
        return f"one request in {_ASKS_ONE_IN} asks the cache: a lookup spares {spared_ms:.1f} ms and takes {cost_ms:g}"

    def _is_short(self, account: _Account) -> bool:
        return account.count >= _NEEDED_COUNT and account.spared_s < self._cost_s
