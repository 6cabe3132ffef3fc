"""Average demand and shares."""

import pytest

from pentimento.policies.serving.demand import averaged_demand, settled_weight, share_weight, smoothed
from pentimento.policies.serving.entry import scaled_start_step


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
