"""What a tenant may ask for. Work is counted in pixel steps: width x height x denoising steps."""

import math
from dataclasses import dataclass

from pentimento.domain.errors import InvalidArgument

LEAST_WEIGHT, GREATEST_WEIGHT = 0.01, 100.0
LEAST_RATE, GREATEST_RATE = 0.001, 1e6
GREATEST_COUNT = 1_000_000
GREATEST_COST = 1e18
GREATEST_BYTES = 1 << 60
MAX_POOLS, MAX_POOL_LENGTH = 64, 200


def _check(field: str, value: float | None, least: float, greatest: float) -> None:
    if value is not None and not least <= value <= greatest:
        raise InvalidArgument.of(field, f"must be between {least:g} and {greatest:g}, got {value:g}")


@dataclass(frozen=True)
class TenantQuota:
    """Bounds of one tenant; None is no bound. Every picture of a call counts as a request.

    `requests_per_s` on the long run, `burst_count` at once: None for those of one second, at least one.
    `concurrent_count`: accepted requests that have not ended. `cost_per_minute`: pixel steps asked for, in any minute
    at most twice as many (those saved up, and those that come in meanwhile). `cache_bytes`: what the cache keeps of the
    tenant. `weight`: its share of workers and queues beside others that wait, 1 for everybody who has none. `pools`
    that may paint for it; empty for all.

    Raises InvalidArgument that names field and limit.
    """

    requests_per_s: float | None = None
    burst_count: int | None = None
    concurrent_count: int | None = None
    cost_per_minute: float | None = None
    cache_bytes: int | None = None
    weight: float = 1.0
    pools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("requests_per_s", self.requests_per_s, LEAST_RATE, GREATEST_RATE)
        _check("burst_count", self.burst_count, 1, GREATEST_COUNT)
        _check("concurrent_count", self.concurrent_count, 0, GREATEST_COUNT)
        _check("cost_per_minute", self.cost_per_minute, 1, GREATEST_COST)
        _check("cache_bytes", self.cache_bytes, 0, GREATEST_BYTES)
        _check("weight", self.weight, LEAST_WEIGHT, GREATEST_WEIGHT)
        if self.burst_count is not None and self.requests_per_s is None:
            raise InvalidArgument.of("burst_count", "must come with requests_per_s")
        if len(self.pools) > MAX_POOLS or not all(0 < len(pool) <= MAX_POOL_LENGTH for pool in self.pools):
            limit = f"must be at most {MAX_POOLS} names of 1 to {MAX_POOL_LENGTH} characters"
            raise InvalidArgument.of("pools", limit)

    @property
    def burst(self) -> int:
        """Return how many requests may come at once where a rate is set."""
        return self.burst_count if self.burst_count is not None else max(math.ceil(self.requests_per_s or 0.0), 1)

    def allows(self, pool: str) -> bool:
        """Return whether the pool may paint for the tenant."""
        return not self.pools or pool in self.pools
