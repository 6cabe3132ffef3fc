"""Limit a tenant's requests by token buckets and by the number of unfinished requests.

Pure: callers pass the time, in monotonic seconds. A bucket begins full.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from pentimento.domain.tenants import TenantQuota

MINUTE_S = 60.0
# Tolerance for rounding: a refused request must fit after the wait that it received.
_ROUNDING = 1e-9


class QuotaBucket:
    """Admit at most `burst`, plus `rate` for each second."""

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """Fill the bucket. `rate` per second is above 0."""
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = now

    def wait_s(self, now: float, amount: float) -> float:
        """Return the seconds after which `amount` fits: 0 for now, infinity for never."""
        lacking = amount - self._level_at(now)
        if lacking <= _ROUNDING * self.burst:
            return 0.0
        return lacking / self.rate if amount <= self.burst else math.inf

    def take(self, now: float, amount: float) -> None:
        """Take an amount that fits by `wait_s`; changes state."""
        self._level, self._at = max(self._level_at(now) - amount, 0.0), max(now, self._at)

    def give_back(self, now: float, amount: float) -> None:
        """Undo a `take`; changes state."""
        self._level, self._at = min(self._level_at(now) + amount, self.burst), max(now, self._at)

    def resized(self, rate: float, burst: float, now: float) -> "QuotaBucket":
        """Return a bucket of another size with the same missing amount."""
        other = QuotaBucket(rate, burst, now)
        other._level = max(burst - (self.burst - self._level_at(now)), 0.0)
        return other

    def _level_at(self, now: float) -> float:
        return min(self._level + max(now - self._at, 0.0) * self.rate, self.burst)


class QuotaName(StrEnum):
    """Name the quotas that refuse requests, for errors and metrics."""

    REQUESTS_PER_S = "requests_per_s"
    CONCURRENT_COUNT = "concurrent_count"
    COST_PER_MINUTE = "cost_per_minute"


@dataclass(frozen=True)
class QuotaRefusal:
    """Hold the refusing quota, its limit in words, and the seconds after which the same request would fit: None if
    unknown (it depends on when others end), infinity for never."""

    quota: QuotaName
    limit: str
    wait_s: float | None


class QuotaMeter:
    """Meter a tenant's use of its quota."""

    def __init__(self, quota: TenantQuota, now: float) -> None:
        """Start without any use."""
        self.quota = quota
        self._requests = _bucket(quota.requests_per_s, quota.burst, now)
        cost = quota.cost_per_minute
        self._cost = _bucket(None if cost is None else cost / MINUTE_S, cost or 0.0, now)

    def refusal(self, now: float, count: int, cost: float, unfinished_count: int) -> QuotaRefusal | None:
        """Return why `count` requests of `cost` pixel steps together are refused now; None if they are not. Of several
        refusing quotas, it is the one with the longest wait. Changes nothing."""
        quota = self.quota
        found = []
        if self._requests is not None and (wait_s := self._requests.wait_s(now, count)):
            limit = f"at most {quota.requests_per_s:g} requests a second, {quota.burst} at once"
            found.append(QuotaRefusal(QuotaName.REQUESTS_PER_S, limit, wait_s))
        if self._cost is not None and (wait_s := self._cost.wait_s(now, cost)):
            limit = f"at most {quota.cost_per_minute:g} pixel steps a minute"
            found.append(QuotaRefusal(QuotaName.COST_PER_MINUTE, limit, wait_s))
        if quota.concurrent_count is not None and unfinished_count + count > quota.concurrent_count:
            limit = f"at most {quota.concurrent_count} requests at once, {unfinished_count} have not ended"
            wait = math.inf if count > quota.concurrent_count else None
            found.append(QuotaRefusal(QuotaName.CONCURRENT_COUNT, limit, wait))
        return max(found, key=lambda one: one.wait_s or 0.0, default=None)

    def take(self, now: float, count: int, cost: float) -> None:
        """Charge admitted requests; changes state."""
        if self._requests is not None:
            self._requests.take(now, count)
        if self._cost is not None:
            self._cost.take(now, cost)

    def give_back(self, now: float, count: int, cost: float) -> None:
        """Refund requests that were admitted but did not run; changes state."""
        if self._requests is not None:
            self._requests.give_back(now, count)
        if self._cost is not None:
            self._cost.give_back(now, cost)

    def follow(self, quota: TenantQuota, now: float) -> None:
        """Apply another quota from now on, with earlier use still charged; changes state."""
        requests, cost = self._requests, self._cost
        fresh = QuotaMeter(quota, now)
        self.quota, self._requests, self._cost = quota, fresh._requests, fresh._cost
        if requests is not None and self._requests is not None:
            self._requests = requests.resized(self._requests.rate, self._requests.burst, now)
        if cost is not None and self._cost is not None:
            self._cost = cost.resized(self._cost.rate, self._cost.burst, now)


def _bucket(rate: float | None, burst: float, now: float) -> QuotaBucket | None:
    return QuotaBucket(rate, burst, now) if rate is not None else None
