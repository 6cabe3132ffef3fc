import math
from typing import Any

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


def test_check_name_takes_printable_names_only() -> None:
    for name in ("a", "Acme Inc.", "ü" * 100):
        check_name(name)
    for name in ("", " acme", "acme ", "a\nb", "a" * 101, "a\x00b"):
        with pytest.raises(InvalidArgument, match="name: must be 1 to 100 printable characters"):
            check_name(name)


def test_key_is_good_until_it_expires_or_is_revoked() -> None:
    ends = [(None, None), (10.1, None), (10.0, None), (None, 5.0), (20.0, 5.0)]

    assert [TenantKey("k", "acme", 0.0, *end).is_good(10.0) for end in ends] == [True, True, False, False, False]


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


def test_usage_periods_of_hours_and_days() -> None:
    assert usage_periods(ROWS, HOUR_S) == (
        UsagePeriod(0, refused_counts={"TENANT_QUOTA": 1}),
        UsagePeriod(DAY_S, 2),
        UsagePeriod(DAY_S + HOUR_S, 3, 1, 1, 1e6, 0.5, 77, {"QUEUE_FULL": 4}),
    )
    assert usage_periods(ROWS, DAY_S) == (
        UsagePeriod(0, refused_counts={"TENANT_QUOTA": 1}),
        UsagePeriod(DAY_S, 5, 1, 1, 1e6, 0.5, 77, {"QUEUE_FULL": 4}),
    )


BOUNDS = {
    "requests_per_s": (0.001, 1e6),
    "concurrent_count": (0, 1_000_000),
    "cost_per_minute": (1, 1e18),
    "cache_bytes": (0, 1 << 60),
    "weight": (0.01, 100.0),
}


def test_quota_bound_takes_its_limits_and_nothing_beyond() -> None:
    for field, (least, greatest) in BOUNDS.items():
        for value in (least, greatest):
            assert getattr(TenantQuota(**{field: value}), field) == value  # type: ignore[arg-type]
        for value in (math.nextafter(least, -math.inf), greatest * 1.001):
            with pytest.raises(InvalidArgument, match=f"^{field}: must be between"):
                TenantQuota(**{field: value})  # type: ignore[arg-type]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"requests_per_s": 0.0}, "requests_per_s: must be between 0.001 and 1e+06, got 0"),
    ({"requests_per_s": math.nan}, "requests_per_s: must be between 0.001 and 1e+06, got nan"),
    ({"requests_per_s": 1.0, "burst_count": 0}, "burst_count: must be between 1 and 1e+06, got 0"),
    ({"burst_count": 3}, "burst_count: must come with requests_per_s"),
    ({"concurrent_count": -1}, "concurrent_count: must be between 0 and 1e+06, got -1"),
    ({"cost_per_minute": 0.5}, "cost_per_minute: must be between 1 and 1e+18, got 0.5"),
    ({"cache_bytes": -1}, "cache_bytes: must be between 0 and 1.15292e+18, got -1"),
    ({"weight": 0.0}, "weight: must be between 0.01 and 100, got 0"),
    ({"pools": ("",)}, "pools: must be at most 64 names of 1 to 200 characters"),
    ({"pools": ("p",) * 65}, "pools: must be at most 64 names of 1 to 200 characters"),
    ({"requests_per_s": 1.0, "burst_count": 1_000_001}, "burst_count: must be between 1 and 1e+06, got 1e+06"),
    ({"pools": ("p" * 201,)}, "pools: must be at most 64 names of 1 to 200 characters"),
    ({"pools": ("p", "")}, "pools: must be at most 64 names of 1 to 200 characters"),
]


def test_quota_outside_its_limits_is_refused_by_name() -> None:
    for values, named in REFUSED:
        with pytest.raises(InvalidArgument) as refused:
            TenantQuota(**values)

        assert refused.value.message == named
    assert len(TenantQuota(pools=("p" * 200,) * 64).pools) == 64
    assert [TenantQuota(1.0, count).burst for count in (1, 1_000_000)] == [1, 1_000_000]


def test_quota_burst_without_count_is_of_a_second() -> None:
    assert [TenantQuota(requests_per_s=rate).burst for rate in (0.1, 1.0, 2.5)] == [1, 1, 3]


def test_quota_without_pools_allows_all() -> None:
    assert [TenantQuota(pools=pools).allows("light") for pools in ((), ("light",), ("heavy",))] == [True, True, False]


def test_tenant_defaults_bound_nothing() -> None:
    assert Tenant("acme") == Tenant("acme", TenantQuota(), 0.0, 1)
    assert TenantQuota() == TenantQuota(None, None, None, None, None, 1.0, ())
    assert UsagePeriod(5) == UsagePeriod(5, 0, 0, 0, 0.0, 0.0, 0, {})
    assert TenantQuota().burst == 1
    assert refused_counter("QUEUE_FULL") == "refused:QUEUE_FULL"
