"""Decide whether a request uses the cache if the cache takes processor time from the workers.

Where services and workers share processors, as on a laptop, a lookup and an insertion take time in which no image is
denoised. A tenant's hits save a share of the image from noise. While that share of the next image's seconds is less
than the cache takes, one request in 16 uses the cache: this measures when hits save more again. Thinned images take
fewer seconds, so the same share of them may no longer pay.
"""

from collections import OrderedDict
from dataclasses import dataclass

_ASKS_ONE_IN = 16
# A cache must be filled before it can save anything; hits show sooner that it does not pay.
_NEEDED_LOOKUPS = 256
_NEEDED_HITS = 16
# The least weights of a new lookup and of a new hit in the means. Hits are few and say more: when load begins to thin
# images, about ten hits show that the cache pays no more.
_LOOKUP_WEIGHT, _HIT_WEIGHT = 1 / 64, 1 / 16
# The tenant that asked longest ago is dropped beyond it.
_MAX_TENANTS = 4096


@dataclass(slots=True)
class _Mean:
    """Average the shares of seconds that were saved; later ones weigh more."""

    least_weight: float
    count: int = 0
    share: float = 0.0

    def add(self, share: float) -> None:
        self.count += 1
        self.share += (share - self.share) * max(1 / self.count, self.least_weight)


class _Account:
    """Hold what a tenant's lookups and hits saved, and the requests since its last lookup."""

    __slots__ = ("hits", "left_out", "lookups")

    def __init__(self) -> None:
        self.lookups, self.hits, self.left_out = _Mean(_LOOKUP_WEIGHT), _Mean(_HIT_WEIGHT), 0

    def best(self) -> tuple[str, float]:
        """Return the most that a lookup is known to save of an image's seconds, and by what: "lookup", "hit" or "image"
        until enough were counted. A lookup saves no more in the mean than a hit does."""
        known = [("image", 1.0)]
        if self.lookups.count >= _NEEDED_LOOKUPS:
            known.append(("lookup", self.lookups.share))
        if self.hits.count >= _NEEDED_HITS:
            known.append(("hit", self.hits.share))
        return min(known, key=lambda one: one[1])


class CacheWorth:
    """Record the share of an image's device seconds that each tenant's lookups saved."""

    def __init__(self, cost_s: float) -> None:
        """`cost_s`: device seconds that a lookup and an insertion take; 0 if they take none: then all requests use the
        cache."""
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

    def note(self, tenant: str, share: float, *, found: bool = False) -> None:
        """Add what a lookup saved of the image's seconds: 0 for a miss, negative if the start takes longer than noise.

        `found`: whether there was a start, taken or not.
        """
        if self.cost_s > 0.0:
            account = self._account(tenant)
            account.lookups.add(share)
            if found:
                account.hits.add(share)

    def why_left_out(self, tenant: str, noise_s: float | None) -> str:
        """Say why most such requests of the tenant do not use the cache; empty if all do."""
        why = self._why(tenant, noise_s)
        return f"one request in {_ASKS_ONE_IN} asks the cache: {why}" if why else ""

    def _why(self, tenant: str, noise_s: float | None) -> str:
        if noise_s is None or self.cost_s <= 0.0:
            return ""
        what, share = self._accounts.get(tenant, _Account()).best()
        saved_s = share * noise_s
        takes = f"takes {self.cost_s * 1000:g}"
        if what == "image":
            return f"the image takes {saved_s * 1000:.1f} ms and the cache {takes}" if saved_s < self.cost_s else ""
        return f"a {what} saves {saved_s * 1000:.1f} ms and {takes}" if saved_s < self.cost_s else ""

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.setdefault(tenant, _Account())
        self._accounts.move_to_end(tenant)
        if len(self._accounts) > _MAX_TENANTS:
            self._accounts.popitem(last=False)
        return account
