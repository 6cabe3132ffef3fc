"""Decide whether a request uses the cache if the cache takes processor time from the workers.

Where services and workers share processors, as on a laptop, lookups and insertions delay denoising. A tenant's lookups
save a mean share of an image's seconds from noise. While that share of the next image's seconds is less than the cache
takes, one request in 16 uses the cache: this measures when it saves more again. Thinned images take fewer seconds, so
the same share may no longer pay.
"""

from collections import OrderedDict
from dataclasses import dataclass

_ASKS_ONE_IN = 16
# A cache must be filled before it can save anything: the mean counts once lookups have taken as long as these images.
_INVESTED_IMAGES = 8
# The least weight of a new lookup in the mean.
_FRESHNESS = 1 / 32
# The tenant that asked longest ago is dropped beyond it.
_MAX_TENANTS = 4096


@dataclass(slots=True)
class _Account:
    """Count a tenant's lookups and average the shares that they saved; count requests since the last lookup."""

    lookups: int = 0
    share: float = 0.0
    left_out: int = 0

    def note(self, share: float) -> None:
        self.lookups += 1
        self.share += (share - self.share) * max(1 / self.lookups, _FRESHNESS)


class CacheWorth:
    """Record the share of an image's device seconds that each tenant's lookups saved."""

    def __init__(self, cost_s: float) -> None:
        """Start without lookups. `cost_s`: device seconds that a lookup and an insertion take; with 0 all requests use
        the cache."""
        self.cost_s = cost_s
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def asks(self, tenant: str, noise_s: float | None) -> bool:
        """Return whether the tenant's next request uses the cache, and count it.

        `noise_s`: device seconds of its image from noise; None if unknown: then it uses the cache.
        """
        if not self._why(tenant, noise_s):
            return True
        account = self._account(tenant)
        account.left_out = (account.left_out + 1) % _ASKS_ONE_IN
        return account.left_out == 0

    def note(self, tenant: str, share: float) -> None:
        """Add the share of an image's seconds that a lookup saved: 0 for a miss, negative if the start takes longer."""
        if self.cost_s > 0.0:
            self._account(tenant).note(share)

    def why_left_out(self, tenant: str, noise_s: float | None) -> str:
        """Return why most such requests of the tenant do not use the cache; empty if all do."""
        why = self._why(tenant, noise_s)
        return f"one request in {_ASKS_ONE_IN} asks the cache: {why}" if why else ""

    def _why(self, tenant: str, noise_s: float | None) -> str:
        if noise_s is None or self.cost_s <= 0.0:
            return ""
        account = self._accounts.get(tenant, _Account())
        known = account.lookups * self.cost_s >= _INVESTED_IMAGES * noise_s
        saved_s = noise_s * account.share if known else noise_s
        if saved_s >= self.cost_s:
            return ""
        what = "a lookup saves" if known else "the image takes"
        return f"{what} {saved_s * 1000:.1f} ms, the cache takes {self.cost_s * 1000:g}"

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.setdefault(tenant, _Account())
        self._accounts.move_to_end(tenant)
        if len(self._accounts) > _MAX_TENANTS:
            self._accounts.popitem(last=False)
        return account
