import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.tenants import TenantQuota
from pentimento.policies.tenant_quota import QuotaBucket, QuotaMeter, QuotaName

rates = st.floats(0.01, 1000.0)
gaps = st.floats(0.0, 30.0)
amounts = st.floats(0.1, 50.0)


@given(rates, st.floats(1.0, 40.0), st.lists(st.tuples(gaps, amounts), max_size=60))
def test_bucket_lets_through_rate_and_burst_at_most(
    rate: float, burst: float, asked: list[tuple[float, float]]
) -> None:
    bucket, now, let_in = QuotaBucket(rate, burst, 100.0), 100.0, list[tuple[float, float]]()
    for gap, amount in asked:
        now += gap
        if not bucket.wait_s(now, amount):
            bucket.take(now, amount)
            let_in.append((now, amount))
    for first in range(len(let_in)):
        for last in range(first, len(let_in)):
            took = sum(amount for _, amount in let_in[first : last + 1])
            elapsed = let_in[last][0] - let_in[first][0]
            assert took <= (rate * elapsed + burst) * (1 + 1e-6)


@given(rates, st.floats(1.0, 40.0), st.lists(st.tuples(gaps, amounts), max_size=40), amounts)
def test_bucket_wait_is_exact(rate: float, burst: float, asked: list[tuple[float, float]], amount: float) -> None:
    bucket, now = QuotaBucket(rate, burst, 0.0), 0.0
    for gap, taken in asked:
        now += gap
        if not bucket.wait_s(now, taken):
            bucket.take(now, taken)

    wait_s = bucket.wait_s(now, amount)

    if amount > burst * (1 + 1e-9):
        assert wait_s == math.inf
    elif wait_s:
        assert bucket.wait_s(now + wait_s, amount) == 0.0
        assert bucket.wait_s(now + wait_s * 0.9 - 1e-3, amount) > 0.0


def test_bucket_fills_to_burst_and_no_further() -> None:
    bucket = QuotaBucket(2.0, 4.0, 0.0)
    bucket.take(0.0, 4.0)

    assert bucket.wait_s(0.0, 1.0) == 0.5
    for _ in range(2):
        bucket.give_back(0.0, 3.0)
    for now in (0.0, 1e6):
        assert (bucket.wait_s(now, 4.0), bucket.wait_s(now, 4.5)) == (0.0, math.inf)


def test_bucket_of_clock_set_back_gains_nothing() -> None:
    bucket = QuotaBucket(1.0, 2.0, 10.0)
    bucket.take(10.0, 2.0)

    bucket.take(5.0, 0.0)

    assert bucket.wait_s(11.0, 1.0) == 0.0
    assert bucket.wait_s(10.5, 1.0) == 0.5


def test_meter_names_quota_of_longest_wait() -> None:
    meter = QuotaMeter(TenantQuota(requests_per_s=1.0, cost_per_minute=600.0, concurrent_count=1), 0.0)
    meter.take(0.0, 1, 600.0)

    refusal = meter.refusal(0.0, 1, 100.0, unfinished_count=1)

    assert refusal is not None
    assert (refusal.quota, refusal.wait_s) == (QuotaName.COST_PER_MINUTE, 10.0)
    assert refusal.limit == "at most 600 pixel steps a minute"


def test_meter_counts_unfinished_requests() -> None:
    meter = QuotaMeter(TenantQuota(concurrent_count=3), 0.0)

    assert meter.refusal(0.0, 2, 1.0, unfinished_count=1) is None
    refusal = meter.refusal(0.0, 3, 1.0, unfinished_count=1)
    assert refusal is not None
    assert (refusal.quota, refusal.wait_s) == (QuotaName.CONCURRENT_COUNT, None)
    assert refusal.limit == "at most 3 requests at once, 1 have not ended"
    never = meter.refusal(0.0, 4, 1.0, unfinished_count=0)
    assert never is not None
    assert never.wait_s == math.inf


def test_meter_counts_each_image_as_a_request() -> None:
    meter = QuotaMeter(TenantQuota(requests_per_s=1.0, burst_count=4), 0.0)
    meter.take(0.0, 3, 1.0)

    assert meter.refusal(0.0, 1, 1.0, 0) is None
    refusal = meter.refusal(0.0, 2, 1.0, 0)
    assert refusal is not None
    assert (refusal.quota, refusal.wait_s, refusal.limit) == (
        QuotaName.REQUESTS_PER_S,
        1.0,
        "at most 1 requests a second, 4 at once",
    )


def test_meter_of_other_burst_keeps_use() -> None:
    meter = QuotaMeter(TenantQuota(requests_per_s=1.0, burst_count=4), 0.0)
    meter.take(0.0, 3, 1.0)

    meter.follow(TenantQuota(requests_per_s=1.0, burst_count=10), 0.0)

    refusals = [meter.refusal(0.0, count, 1.0, 0) for count in (7, 8)]
    assert [refusal is None for refusal in refusals] == [True, False]


def test_meter_without_bounds_refuses_nothing() -> None:
    assert QuotaMeter(TenantQuota(), 0.0).refusal(0.0, 1_000_000, 1e30, 1_000_000) is None


def test_meter_of_other_cost_keeps_use() -> None:
    meter = QuotaMeter(TenantQuota(cost_per_minute=600.0), 0.0)
    meter.take(0.0, 1, 500.0)
    meter.follow(TenantQuota(cost_per_minute=1200.0), 0.0)
    fresh = QuotaMeter(TenantQuota(), 0.0)
    fresh.follow(TenantQuota(cost_per_minute=600.0, requests_per_s=1.0), 0.0)

    changed = meter.refusal(0.0, 1, 800.0, 0)
    assert changed is not None and changed.wait_s == pytest.approx(5.0)
    assert meter.refusal(0.0, 1, 700.0, 0) is None
    assert fresh.refusal(0.0, 1, 600.0, 0) is None
    meter.follow(TenantQuota(), 0.0)
    assert meter.refusal(0.0, 9, 1e9, 0) is None
