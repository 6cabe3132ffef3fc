"""Test draws of costs, and costs of slower devices."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.emulation.cost_draws import draw, slower
from pentimento.profiles.costs import Cost


@settings(deadline=None)
@given(st.floats(0.01, 10), st.floats(0.01, 1.0), st.integers(0, 5))
def test_draws_have_mean_and_variance_of_cost(mean_s: float, spread: float, seed: int) -> None:
    cost = Cost(mean_s, (spread * mean_s) ** 2, 5)
    source = random.Random(seed)

    drawn = [draw(cost, source) for _ in range(4000)]

    assert min(drawn) > 0
    assert statistics.fmean(drawn) == pytest.approx(mean_s, rel=0.1)
    assert statistics.stdev(drawn) == pytest.approx(spread * mean_s, rel=0.35)


def test_draw_of_cost_without_spread_is_its_mean() -> None:
    assert [draw(cost, random.Random(0)) for cost in (Cost(0.5, 0.0, 1), Cost(0.0, 1.0, 2))] == [0.5, 0.0]


def test_cost_times_factor_scales_mean_and_variance() -> None:
    assert slower(Cost(0.5, 0.01, 3), 2.0) == Cost(1.0, 0.04, 3)
