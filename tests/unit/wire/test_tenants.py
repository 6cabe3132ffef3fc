"""Tenants, keys and usage there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.api.tenants.v1 import tenant_service_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import DAY_S, HOUR_S, Tenant, TenantKey, TenantQuota, UsagePeriod
from pentimento.wire.tenants import (
    key_from_proto,
    key_to_proto,
    period_length_s,
    period_length_to_proto,
    quota_from_proto,
    quota_to_proto,
    tenant_from_proto,
    tenant_to_proto,
    usage_from_proto,
    usage_to_proto,
)

moments = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)
counts = st.integers(0, 1 << 40)
rates = st.none() | st.floats(0.001, 1e6)
quotas = st.builds(
    lambda rate, burst, *rest: TenantQuota(rate, burst if rate is not None else None, *rest),
    rates,
    st.none() | st.integers(1, 1_000_000),
    st.none() | st.integers(0, 1_000_000),
    st.none() | st.floats(1.0, 1e18),
    st.none() | st.integers(0, 1 << 60),
    st.floats(0.01, 100.0),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=3).map(tuple),
)
periods = st.builds(
    UsagePeriod, counts, counts, counts, counts, st.floats(0, 1e18), st.floats(0, 1e9), counts,
    st.dictionaries(st.text("AB_", min_size=1), counts, max_size=3),
)  # fmt: skip


@given(quotas, moments, st.integers(1, 1 << 31))
def test_a_tenant_comes_back_with_every_bound(quota: TenantQuota, created_at: float, revision: int) -> None:
    tenant = Tenant("acme", quota, created_at, revision)

    assert tenant_from_proto(tenant_to_proto(tenant)) == tenant
    assert quota_from_proto(quota_to_proto(quota)) == quota


@given(moments, st.none() | moments, st.none() | moments)
def test_a_key_comes_back_with_when_it_ends(
    created_at: float, expires_at: float | None, revoked_at: float | None
) -> None:
    key = TenantKey("k", "acme", created_at, expires_at, revoked_at)

    assert key_from_proto(key_to_proto(key)) == key


@given(st.lists(periods, max_size=3))
def test_what_was_used_comes_back(used: list[UsagePeriod]) -> None:
    assert usage_from_proto(usage_to_proto(used)) == tuple(used)


def test_times_are_milliseconds_on_the_wire() -> None:
    tenant = tenant_to_proto(Tenant("acme", created_at=1.2345))
    key = key_to_proto(TenantKey("k", "acme", 1.5, 2.5, 3.5))

    assert (tenant.created_at_ms, key.created_at_ms, key.expires_at_ms, key.revoked_at_ms) == (1234, 1500, 2500, 3500)
    assert usage_to_proto([UsagePeriod(7200)]).periods[0].start_at_ms == 7_200_000


def test_what_a_message_does_not_say_is_no_bound_and_a_weight_of_one() -> None:
    assert quota_from_proto(pb.TenantQuota()) == TenantQuota()
    assert quota_from_proto(pb.TenantQuota(concurrent_count=0, cache_bytes=0)) == TenantQuota(
        concurrent_count=0, cache_bytes=0
    )
    assert not quota_to_proto(TenantQuota()).HasField("requests_per_s")


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (pb.TenantQuota(weight=0.0), "quota.weight: must be between 0.01 and 100, got 0"),
        (pb.TenantQuota(burst_count=3), "quota.burst_count: must come with requests_per_s"),
        (pb.TenantQuota(pools=[""]), "quota.pools: must be at most 64 names of 1 to 200 characters"),
    ],
)
def test_a_wrong_bound_is_named_as_the_field_of_its_quota(message: pb.TenantQuota, named: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        quota_from_proto(message)

    assert refused.value.message == named
    assert [one.field for one in refused.value.violations] == [named.partition(":")[0]]


@pytest.mark.parametrize(
    ("number", "length_s"), [(pb.USAGE_PERIOD_LENGTH_HOUR, HOUR_S), (pb.USAGE_PERIOD_LENGTH_DAY, DAY_S)]
)
def test_periods_are_hours_and_days(number: pb.UsagePeriodLength.ValueType, length_s: int) -> None:
    assert (period_length_s(number), period_length_to_proto(length_s)) == (length_s, number)


@pytest.mark.parametrize("number", [pb.USAGE_PERIOD_LENGTH_UNSPECIFIED, 9])
def test_a_period_of_another_length_is_refused(number: pb.UsagePeriodLength.ValueType) -> None:
    with pytest.raises(InvalidArgument, match=rf"^period: must be one of \[1, 2\], got {number}$"):
        period_length_s(number)
