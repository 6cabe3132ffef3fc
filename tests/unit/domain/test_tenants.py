import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import (
    DAY_S,
    HOUR_S,
    TenantKey,
    UsagePeriod,
    UsageRow,
    check_name,
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
        UsagePeriod(0, refused={"TENANT_QUOTA": 1}),
        UsagePeriod(DAY_S, 2),
        UsagePeriod(DAY_S + HOUR_S, 3, 1, 1, 1e6, 0.5, 77, {"QUEUE_FULL": 4}),
    )


def test_usage_by_the_day() -> None:
    assert usage_periods(ROWS, DAY_S) == (
        UsagePeriod(0, refused={"TENANT_QUOTA": 1}),
        UsagePeriod(DAY_S, 5, 1, 1, 1e6, 0.5, 77, {"QUEUE_FULL": 4}),
    )
