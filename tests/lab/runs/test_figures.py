"""Test the figures of a run: each of a small run computed by hand, and properties of any run."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.runs import Outcome, RequestRecord, StageSpan, StartKind
from lab.runs.figures import (
    Attainment,
    Spread,
    fair_shares,
    jain_index,
    start_shares,
    steps_saved,
    tenant_fairness,
    waterfall,
    windows,
)
from pentimento.domain.errors import InvalidArgument

DONE = RequestRecord("r", "a", "standard", "heavy", 0.0, 10.0, 4.0, Outcome.COMPLETED, steps=50)
RECORDS = st.lists(
    st.builds(
        lambda came, took, outcome, tenant: replace(
            DONE, arrived_s=came, ended_s=came + took, outcome=outcome, tenant=tenant
        ),
        st.floats(0, 100),
        st.floats(0, 50),
        st.sampled_from(Outcome),
        st.sampled_from("abc"),
    ),
    max_size=30,
)


def of(*outcomes: Outcome, tenant: str = "a") -> list[RequestRecord]:
    return [replace(DONE, outcome=outcome, tenant=tenant) for outcome in outcomes]


def test_violations_are_late_dropped_rejected_and_failed_requests() -> None:
    found = Attainment.of(of(*Outcome, Outcome.COMPLETED))

    assert (found.total, found.counted, found.violations) == (7, 6, 4)
    assert found.slo_attainment == pytest.approx(2 / 6)


def test_a_cancelled_request_counts_neither_way() -> None:
    assert Attainment.of(of(Outcome.COMPLETED, Outcome.CANCELLED)).slo_attainment == 1.0
    assert math.isnan(Attainment.of(of(Outcome.CANCELLED)).slo_attainment)


def test_latencies_are_those_of_answers_late_ones_too() -> None:
    records = [
        replace(DONE, ended_s=2.0),
        replace(DONE, ended_s=30.0, outcome=Outcome.LATE),
        replace(DONE, ended_s=0.1, outcome=Outcome.REJECTED),
    ]

    assert Attainment.of(records).latency_s.mean == 16.0
    assert Attainment.of(records).latency_s.count == 2


def test_percentiles_lie_between_order_statistics() -> None:
    assert Spread.of([float(value) for value in reversed(range(101))]) == Spread(101, 50.0, 50.0, 95.0, 99.0)


def test_waterfall_divides_time_by_stage() -> None:
    record = replace(
        DONE, stages=(StageSpan("queue", 0.0, 1.0), StageSpan("denoise", 1.0, 3.0), StageSpan("decode", 3.0, 3.5))
    )

    stages = waterfall([record, replace(record, outcome=Outcome.DROPPED)])

    assert [stage.name for stage in stages] == ["queue", "denoise", "decode", "other"]
    assert [stage.seconds.mean for stage in stages] == [1.0, 2.0, 0.5, 0.5]
    assert [stage.share for stage in stages] == [0.25, 0.5, 0.125, 0.125]
    assert [stage.began_s for stage in stages[:3]] == [0.0, 1.0, 3.0]


def test_waterfall_counts_overlapping_and_repeated_stages() -> None:
    stages = (StageSpan("lookup", 0.0, 2.0), StageSpan("queue", 1.0, 3.0), StageSpan("lookup", 3.0, 3.5))

    found = {stage.name: stage.seconds.mean for stage in waterfall([replace(DONE, stages=stages)])}

    assert found == {"lookup": 2.5, "queue": 2.0, "other": 0.5}


def test_windows_count_arrivals_and_answers_at_their_times() -> None:
    records = [
        replace(DONE, arrived_s=0.0, ended_s=12.0, quality=0.8),
        replace(DONE, arrived_s=9.0, ended_s=11.0, outcome=Outcome.LATE, quality=0.6),
        replace(DONE, arrived_s=9.5, ended_s=9.5, outcome=Outcome.REJECTED),
    ]

    first, second = windows(records, 10.0)

    assert (first.arrived, first.answered, second.arrived) == (3, 0, 0)
    assert (second.answered, second.in_time) == (2, 1)
    assert first.violation_share == pytest.approx(2 / 3) and math.isnan(second.violation_share)
    assert second.quality == pytest.approx(0.7) and math.isnan(first.quality)


@given(RECORDS, st.floats(0.5, 50))
def test_no_request_is_lost_in_the_windows(records: list[RequestRecord], window_s: float) -> None:
    found = windows(records, window_s)

    assert sum(window.arrived for window in found) == len(records)
    assert sum(window.answered for window in found) == sum(record.outcome.answered for record in records)


def test_steps_saved_weigh_requests_by_their_steps() -> None:
    hit = replace(DONE, start=StartKind.LATENT, start_step=20, steps=50)

    assert steps_saved([hit, DONE, replace(hit, outcome=Outcome.FAILED)]) == 0.2
    assert start_shares([hit, DONE])[StartKind.LATENT] == 0.5
    assert math.isnan(steps_saved([]))


@pytest.mark.parametrize(("values", "index"), [([3, 3, 3], 1.0), ([1, 0, 0, 0], 0.25), ([2, 1], 0.9)])
def test_jains_index(values: list[float], index: float) -> None:
    assert jain_index(values) == pytest.approx(index)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=8), st.floats(0, 1e6))
def test_fair_shares_are_max_min_fair(demands: dict[str, float], capacity: float) -> None:
    shares = fair_shares(demands, capacity)

    assert sum(shares.values()) == pytest.approx(min(capacity, sum(demands.values())), abs=1e-6)
    assert all(shares[name] <= demand + 1e-9 for name, demand in demands.items())
    unmet = [shares[name] for name, demand in demands.items() if shares[name] < demand * (1 - 1e-9) - 1e-9]
    # A tenant with unmet demand has the largest share.
    assert all(share == pytest.approx(max(shares.values()), rel=1e-6, abs=1e-6) for share in unmet)


def test_modest_tenant_fully_served_is_fair() -> None:
    modest = of(*[Outcome.COMPLETED] * 10, tenant="modest")
    greedy = of(*[Outcome.COMPLETED] * 90, *[Outcome.REJECTED] * 400, tenant="greedy")

    assert tenant_fairness(modest + greedy) == pytest.approx(1.0)


def test_a_modest_tenant_that_starves_is_not_fair() -> None:
    modest = of(*[Outcome.REJECTED] * 9, Outcome.COMPLETED, tenant="modest")
    greedy = of(*[Outcome.COMPLETED] * 99, tenant="greedy")

    assert tenant_fairness(modest + greedy) < 0.65


@given(RECORDS)
def test_fairness_is_between_single_and_equal_tenants(records: list[RequestRecord]) -> None:
    found = tenant_fairness(records)

    assert math.isnan(found) or 1 / 3 - 1e-9 <= found <= 1 + 1e-9


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="window_s: must be above 0"):
        windows([], 0.0)
