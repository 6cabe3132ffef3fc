"""Decide whether a request uses a mechanism that takes processor time from the workers: the cache, or a cascade.

Where services and workers share processors, as on a laptop, lookups, insertions and predictions delay denoising. A
tenant's lookups, or a cascade's predictions, save a mean share of an image's seconds from noise. While that share of
the next image's seconds is less than the mechanism takes, one request in 16 uses it: this measures when it saves more
again. Thinned images take fewer seconds, so the same share may no longer pay.
"""

from collections import OrderedDict
from dataclasses import dataclass

_ASKS_ONE_IN = 16
# A cache must be filled before it can save anything: the mean counts once its uses have taken as long as these images.
_INVESTED_IMAGES = 8
# The least weight of a new use in the mean.
_FRESHNESS = 1 / 32
# The account that was used longest ago is dropped beyond it.
_MAX_ACCOUNTS = 4096


@dataclass(slots=True)
class _Account:
    """Count an account's uses and average the shares that they saved; count requests since the last use."""

    uses: int = 0
    share: float = 0.0
    left_out: int = 0

    def note(self, share: float) -> None:
        self.uses += 1
        self.share += (share - self.share) * max(1 / self.uses, _FRESHNESS)


@dataclass(frozen=True)
class Mechanism:
    """Name a mechanism and one use of it, for people."""

    name: str
    use: str


CACHE = Mechanism("cache", "lookup")
CASCADE = Mechanism("cascade", "prediction")


class Worth:
    """Record the share of an image's device seconds that the uses of a mechanism saved, by account: a tenant of the
    cache, a cascade's name."""

    def __init__(self, cost_s: float, mechanism: Mechanism = CACHE) -> None:
        """Start without uses. `cost_s`: device seconds that a use takes (a lookup and an insertion); with 0 all
        requests use it."""
        self.cost_s = cost_s
        self._mechanism = mechanism
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def asks(self, account: str, noise_s: float | None) -> bool:
        """Return whether the account's next request uses the mechanism, and count it.

        `noise_s`: device seconds of its image from noise; None if unknown: then it uses the mechanism.
        """
        if not self._why(account, noise_s):
            return True
        found = self._account(account)
        found.left_out = (found.left_out + 1) % _ASKS_ONE_IN
        return found.left_out == 0

    def note(self, account: str, share: float) -> None:
        """Add the share of an image's seconds that a use saved: 0 for a miss, negative if the start takes longer."""
        if self.cost_s > 0.0:
            self._account(account).note(share)

    def why_left_out(self, account: str, noise_s: float | None) -> str:
        """Return why most such requests of the account do not use the mechanism; empty if all do."""
        why = self._why(account, noise_s)
        return f"one request in {_ASKS_ONE_IN} asks the {self._mechanism.name}: {why}" if why else ""

    def _why(self, account: str, noise_s: float | None) -> str:
        if noise_s is None or self.cost_s <= 0.0:
            return ""
        found = self._accounts.get(account, _Account())
        known = found.uses * self.cost_s >= _INVESTED_IMAGES * noise_s
        saved_s = noise_s * found.share if known else noise_s
        if saved_s >= self.cost_s:
            return ""
        what = f"a {self._mechanism.use} saves" if known else "the image takes"
        return f"{what} {saved_s * 1000:.1f} ms, the {self._mechanism.name} takes {self.cost_s * 1000:g}"

    def _account(self, account: str) -> _Account:
        found = self._accounts.setdefault(account, _Account())
        self._accounts.move_to_end(account)
        if len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return found
