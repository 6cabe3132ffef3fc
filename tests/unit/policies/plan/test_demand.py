"""Average demand and shares, and find the demand for a model."""

import pytest

from pentimento.policies.plan.demand import averaged_demand, demand_of, settled_weight, share_weight, smoothed
from pentimento.policies.plan.entry import scaled_start_step
from pentimento.policies.plan.inputs import ModelDemand, PlanInput


@pytest.mark.parametrize(
    ("model", "found"),
    [
        pytest.param("m", ModelDemand("m", 2.0, 3), id="requested"),
        pytest.param("absent", ModelDemand("absent", 0.0), id="not-requested"),
    ],
)
def test_demand_of_a_model(model: str, found: ModelDemand) -> None:
    given = PlanInput(0.0, (), (ModelDemand("other", 9.0), ModelDemand("m", 2.0, 3)))

    assert demand_of(given, model) == found


@pytest.mark.parametrize(("before", "found"), [(0.0, 8.0), (4.0, 5.0), (8.0, 8.0), (12.0, 11.0), (1e-6, 2.0)])
def test_an_average_moves_by_its_weight_and_begins_with_what_is_seen(before: float, found: float) -> None:
    assert smoothed(8.0, before, 0.25) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize(
    ("rate", "weight"), [(80.0, 0.3), (12.0, 0.3), (8.0, 0.2), (0.4, 0.01), (0.1, 1 / 120), (0.0, 1 / 120)]
)
def test_a_second_of_a_slow_fleet_counts_for_less(rate: float, weight: float) -> None:
    """Forty requests, or two minutes."""
    assert settled_weight(0.3, rate) == pytest.approx(weight)


@pytest.mark.parametrize(("count", "weight"), [(0, 0.0), (1, 0.02), (2, 1 - 0.98**2), (50, 1 - 0.98**50)])
def test_so_many_requests_count_for_more_the_more_they_are(count: int, weight: float) -> None:
    assert share_weight(count) == pytest.approx(weight)


def test_two_seconds_at_once_are_as_two_of_one() -> None:
    once = averaged_demand(10.0, averaged_demand(10.0, 2.0, 0.25, 1.0), 0.25, 1.0)

    assert averaged_demand(10.0, 2.0, 0.25, 2.0) == pytest.approx(once) == pytest.approx(2.0 + 8.0 * (1 - 0.75**2))
    assert averaged_demand(10.0, 2.0, 0.25, 0.0) == 2.0


def test_average_begins_with_first_value() -> None:
    assert (smoothed(6.0, 0.0, 0.5), smoothed(6.0, 2.0, 0.25)) == (6.0, 3.0)
    assert averaged_demand(6.0, 2.0, 0.5, 2.0) == pytest.approx(2.0 + 0.75 * 4.0)
    assert averaged_demand(6.0, 2.0, 0.5, 0.0) == 2.0


def test_scaled_start_step_keeps_share_and_one_step() -> None:
    assert [scaled_start_step(step, 50, 10) for step in (0, 2, 20, 50)] == [0, 0, 4, 9]


def test_average_of_small_demand() -> None:
    assert smoothed(1.5, 0.5, 0.25) == 0.75


def test_settled_weight_forty_requests_or_two_minutes() -> None:
    assert [settled_weight(0.3, rate) for rate in (0.0, 1.0, 4.0, 100.0)] == [1 / 120, 1 / 40, 0.1, 0.3]


def test_share_weight_is_a_fiftieth_a_request() -> None:
    assert share_weight(0) == 0.0
    assert share_weight(1) == pytest.approx(0.02)
    assert share_weight(50) == pytest.approx(1 - 0.98**50)
