import math

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import (
    DAY_S,
    HOUR_S,
    Tenant,
    TenantKey,
    TenantQuota,
    UsagePeriod,
    UsageRow,
    check_name,
    refused_counter,
    usage_periods,
)


@pytest.mark.parametrize("name", ["", " acme", "acme ", "a\nb", "a" * 101, "a\x00b"])
def test_names_that_no_tenant_may_have(name: str) -> None:
    with pytest.raises(InvalidArgument, match="name: must be 1 to 100 printable characters"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "Acme Inc.", "ü" * 100])
def test_names_that_a_tenant_may_have(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "is_good"),
    [(None, None, True), (10.1, None, True), (10.0, None, False), (None, 5.0, False), (20.0, 5.0, False)],
)
def test_a_key_is_good_until_it_expires_or_is_revoked(
    expires_at: float | None, revoked_at: float | None, is_good: bool
) -> None:
    assert TenantKey("k", "acme", 0.0, expires_at, revoked_at).is_good(10.0) == is_good


ROWS = [
    UsageRow("a", DAY_S, "requests", 2.0),
    UsageRow("a", DAY_S + HOUR_S, "requests", 3.0),
    UsageRow("a", DAY_S + HOUR_S, "pictures", 1.0),
    UsageRow("a", DAY_S + HOUR_S, "cache_hits", 1.0),
    UsageRow("a", DAY_S + HOUR_S, "painted_cost", 1e6),
    UsageRow("a", DAY_S + HOUR_S, "device_s", 0.5),
    UsageRow("a", DAY_S + HOUR_S, "cached_bytes", 77.0),
    UsageRow("a", DAY_S + HOUR_S, "refused:QUEUE_FULL", 4.0),
    UsageRow("a", 0, "refused:TENANT_QUOTA", 1.0),
    UsageRow("a", 0, "of a later version", 9.0),
]


def test_usage_by_the_hour() -> None:
    assert usage_periods(ROWS, HOUR_S) == (
        UsagePeriod(0, refused_counts={"TENANT_QUOTA": 1}),
        UsagePeriod(DAY_S, 2),
        UsagePeriod(DAY_S + HOUR_S, 3, 1, 1, 1e6, 0.5, 77, {"QUEUE_FULL": 4}),
    )


def test_usage_by_the_day() -> None:
    assert usage_periods(ROWS, DAY_S) == (
        UsagePeriod(0, refused_counts={"TENANT_QUOTA": 1}),
        UsagePeriod(DAY_S, 5, 1, 1, 1e6, 0.5, 77, {"QUEUE_FULL": 4}),
    )


@pytest.mark.parametrize(
    ("field", "least", "greatest"),
    [
        ("requests_per_s", 0.001, 1e6),
        ("concurrent_count", 0, 1_000_000),
        ("cost_per_minute", 1, 1e18),
        ("cache_bytes", 0, 1 << 60),
        ("weight", 0.01, 100.0),
    ],
)
def test_a_bound_may_be_its_limits_and_nothing_beyond(field: str, least: float, greatest: float) -> None:
    for value in (least, greatest):
        assert getattr(TenantQuota(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in (math.nextafter(least, -math.inf), greatest * 1.001):
        with pytest.raises(InvalidArgument, match=f"^{field}: must be between"):
            TenantQuota(**{field: value})  # type: ignore[arg-type]


def test_a_burst_is_of_1_to_a_million_beside_a_rate() -> None:
    assert [TenantQuota(1.0, count).burst for count in (1, 1_000_000)] == [1, 1_000_000]
    for count in (0, 1_000_001):
        with pytest.raises(InvalidArgument, match=r"^burst_count: must be between 1 and 1e"):
            TenantQuota(1.0, count)


def test_pools_are_up_to_64_names_of_up_to_200_characters() -> None:
    assert len(TenantQuota(pools=("p" * 200,) * 64).pools) == 64
    for pools in (("p" * 201,), ("p",) * 65, ("p", "")):
        with pytest.raises(InvalidArgument, match=r"^pools: must be at most 64"):
            TenantQuota(pools=pools)


def test_what_nobody_says_of_a_tenant() -> None:
    assert Tenant("acme") == Tenant("acme", TenantQuota(), 0.0, 1)
    assert TenantQuota() == TenantQuota(None, None, None, None, None, 1.0, ())
    assert UsagePeriod(5) == UsagePeriod(5, 0, 0, 0, 0.0, 0.0, 0, {})
    assert TenantQuota().burst == 1
    assert refused_counter("QUEUE_FULL") == "refused:QUEUE_FULL"
