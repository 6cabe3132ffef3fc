"""Tenants: their limits, keys and usage; callers and their roles. Work is counted in pixel steps: width x height x
denoising steps. Times are wall-clock seconds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from pentimento.domain.errors import InvalidArgument


class Role(Enum):
    """Mirrors pentimento.api.auth.v1.Role, which says of every RPC who may call it."""

    ANYONE = "anyone"
    USER = "user"
    SERVICE = "service"
    ADMIN = "admin"
    TENANT_ADMIN = "tenant-admin"


@dataclass(frozen=True)
class Caller:
    """Tenant and roles of a token. Without a token file every caller is `tenant="default"` with every role."""

    tenant: str
    roles: frozenset[Role]


DEFAULT_TENANT = "default"
OPEN_CALLER = Caller(DEFAULT_TENANT, frozenset(Role))


LEAST_WEIGHT, GREATEST_WEIGHT = 0.01, 100.0
LEAST_RATE, GREATEST_RATE = 0.001, 1e6
GREATEST_COUNT = 1_000_000
GREATEST_COST = 1e18
GREATEST_BYTES = 1 << 60
GREATEST_RETENTION_H = 87_840.0
MAX_POOLS, MAX_POOL_LENGTH = 64, 200


def _check(field: str, value: float | None, least: float, greatest: float) -> None:
    if value is not None and not least <= value <= greatest:
        raise InvalidArgument.of(field, f"must be between {least:g} and {greatest:g}, got {value:g}")


@dataclass(frozen=True)
class TenantQuota:
    """Limits of one tenant; None is no limit. Every image of a call counts as a request.

    `requests_per_s` in the long run, `burst_count` at once: None for one second's, at least one. `concurrent_count`:
    accepted requests that have not ended. `cost_per_minute`: requested pixel steps, in any minute at most twice that
    number (savings plus refill). `cache_bytes`: size of the tenant's cache entries. `weight`: its share of workers and
    queues among waiting tenants, 1 by default. `pools` that may serve it; empty for all. `retention_h`: hours that its
    ended requests and images are kept, None for the deployment's.

    Raises InvalidArgument that names field and limit.
    """

    requests_per_s: float | None = None
    burst_count: int | None = None
    concurrent_count: int | None = None
    cost_per_minute: float | None = None
    cache_bytes: int | None = None
    weight: float = 1.0
    pools: tuple[str, ...] = ()
    retention_h: float | None = None

    def __post_init__(self) -> None:
        _check("requests_per_s", self.requests_per_s, LEAST_RATE, GREATEST_RATE)
        _check("burst_count", self.burst_count, 1, GREATEST_COUNT)
        _check("concurrent_count", self.concurrent_count, 0, GREATEST_COUNT)
        _check("cost_per_minute", self.cost_per_minute, 1, GREATEST_COST)
        _check("cache_bytes", self.cache_bytes, 0, GREATEST_BYTES)
        _check("weight", self.weight, LEAST_WEIGHT, GREATEST_WEIGHT)
        _check("retention_h", self.retention_h, 0, GREATEST_RETENTION_H)
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
        """Return whether the pool may serve the tenant."""
        return not self.pools or pool in self.pools


@dataclass(frozen=True)
class Tenant:
    """A tenant that an operator made. `revision` is another one after each change of its quota. `tenant_id`: what rows
    and cache entries are keyed by, never reused; "" is the name."""

    name: str
    quota: TenantQuota = field(default_factory=TenantQuota)
    created_at: float = 0.0
    revision: int = 1
    tenant_id: str = field(default="", compare=False)

    @property
    def identity(self) -> str:
        """Return what the tenant's rows are keyed by."""
        return self.tenant_id or self.name


@dataclass(frozen=True)
class TenantKey:
    """A key without its secret. It ends at `expires_at`, None for never, or at `revoked_at`."""

    key_id: str
    tenant: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_good(self, now: float) -> bool:
        """Return whether calls may be made with it."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class HashedKey:
    """A key, and the SHA-256 of it as 64 hex digits."""

    key: TenantKey
    digest: str


@dataclass(frozen=True)
class TenantBook:
    """All tenants and the keys that may still be good, as they were at `revision`."""

    revision: int
    tenants: tuple[Tenant, ...] = ()
    keys: tuple[HashedKey, ...] = ()


class UsageCounter(Enum):
    """Counters of a tenant; `REFUSED` with the reason behind a colon."""

    REQUESTS = "requests"
    PICTURES = "pictures"
    CACHE_HITS = "cache_hits"
    PAINTED_COST = "painted_cost"
    DEVICE_S = "device_s"
    CACHED_BYTES = "cached_bytes"
    REFUSED = "refused"


@dataclass(frozen=True)
class UsageRow:
    """So much of one counter in the hour of UTC that begins at `hour_at` seconds."""

    tenant: str
    hour_at: int
    counter: str
    amount: float


@dataclass(frozen=True)
class UsagePeriod:
    """Usage of a tenant in the hour or the day that begins at `start_at`. `painted_cost` in pixel steps of delivered
    images, `refused_counts` by reason."""

    start_at: int
    request_count: int = 0
    image_count: int = 0
    cache_hit_count: int = 0
    painted_cost: float = 0.0
    device_s: float = 0.0
    cached_bytes: int = 0
    refused_counts: Mapping[str, int] = field(default_factory=dict)


HOUR_S, DAY_S = 3600, 86_400


class UsagePeriodLength(Enum):
    """Length of a period in seconds."""

    HOUR = HOUR_S
    DAY = DAY_S


# For how long it is known what a tenant used.
USAGE_KEPT_S = 400 * DAY_S
MAX_NAME_LENGTH = 100


# The suite's own: the cache's shared pool, and identities of names that were used before.
RESERVED_PREFIX = "*"


def check_new_name(name: str) -> None:
    """Raises InvalidArgument for a name that no new tenant may have."""
    check_name(name)
    if name.startswith(RESERVED_PREFIX):
        limit = f"must be one without {RESERVED_PREFIX!r} at its start: such names are the suite's own"
        raise InvalidArgument.of("name", limit)


def next_identity(name: str, earlier_count: int) -> str:
    """Return the identity of a tenant before which that many of its name were deleted.

    The first one's is the name: rows of earlier versions have it."""
    return f"{RESERVED_PREFIX}{earlier_count + 1}{RESERVED_PREFIX}{name}" if earlier_count else name


def name_of(identity: str) -> str:
    """Return the tenant's name in an identity of `next_identity`."""
    number, mark, name = identity.removeprefix(RESERVED_PREFIX).partition(RESERVED_PREFIX)
    return name if identity.startswith(RESERVED_PREFIX) and mark and number.isdecimal() else identity


def check_name(name: str, field: str = "name") -> None:
    """Raises InvalidArgument for a name that no tenant, and no key, may have."""
    if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and name == name.strip()):
        raise InvalidArgument.of(field, f"must be 1 to {MAX_NAME_LENGTH} printable characters, no spaces around them")


def refused_counter(reason: str) -> str:
    """Return the counter of requests refused for a reason."""
    return f"{UsageCounter.REFUSED.value}:{reason}"


def usage_periods(rows: Iterable[UsageRow], length_s: int) -> tuple[UsagePeriod, ...]:
    """Return the rows of one tenant added up by hours or days, oldest first."""
    sums: dict[int, dict[str, float]] = {}
    for row in rows:
        start_at = row.hour_at - row.hour_at % length_s
        counters = sums.setdefault(start_at, {})
        counters[row.counter] = counters.get(row.counter, 0.0) + row.amount
    return tuple(_period(start_at, counters) for start_at, counters in sorted(sums.items()))


def _period(start_at: int, counters: Mapping[str, float]) -> UsagePeriod:
    def of(counter: UsageCounter) -> float:
        return counters.get(counter.value, 0.0)

    before = refused_counter("")
    return UsagePeriod(
        start_at,
        request_count=round(of(UsageCounter.REQUESTS)),
        image_count=round(of(UsageCounter.PICTURES)),
        cache_hit_count=round(of(UsageCounter.CACHE_HITS)),
        painted_cost=of(UsageCounter.PAINTED_COST),
        device_s=of(UsageCounter.DEVICE_S),
        cached_bytes=round(of(UsageCounter.CACHED_BYTES)),
        refused_counts={
            name.removeprefix(before): round(amount)
            for name, amount in sorted(counters.items())
            if name.startswith(before)
        },
    )
