"""Numbers of replicas by demand, and how they fall."""

import math

import pytest

from pentimento.domain.demand import StartShare
from pentimento.policies.plan.inputs import ModelDemand
from pentimento.policies.scaling import (
    DwellWindow,
    Forecasts,
    least_servers,
    needed_for_calls,
    needed_workers,
    saved_share,
)
from tests.unit.policies.plan.fleets import context


# By Erlang C's sum: of 80 erlangs, 82 servers delay 75 % of the requests, 1 in 4,000 of them beyond four service times.
@pytest.mark.parametrize(
    ("erlangs", "slack_runs", "servers"),
    [(0.0, 1.0, 1), (0.5, 1.0, 3), (0.5, 4.0, 2), (8.0, 1.0, 12), (8.0, 4.0, 10), (80.0, 4.0, 82), (80.0, 0.25, 92)],
)
def test_least_servers_agrees_with_erlang_c(erlangs: float, slack_runs: float, servers: int) -> None:
    assert least_servers(erlangs, slack_runs) == servers


# A batch of one SD 1.5 image takes 1.78 s: 4.5 images a second are 8.01 erlangs, and 8.9 s of slack five runs.
def test_needed_workers_of_one_model() -> None:
    assert needed_workers(context(0, ModelDemand("sd15", 4.5)), ["sd15"], 3.6, {}) == 12


def test_needed_workers_uses_larger_batches_where_the_slo_allows_them() -> None:
    # Batches of 32 take 25.35 s and serve 1.26 images a second.
    assert needed_workers(context(0, ModelDemand("sd15", 4.5)), ["sd15"], 60.0, {}) == 4


def test_needed_workers_adds_models_and_ignores_those_without_demand() -> None:
    given = context(0, ModelDemand("sd15", 4.5), ModelDemand("turbo", 0.0))

    assert needed_workers(given, ["sd15", "turbo", "unknown"], 3.6, {}) == 12
    assert needed_workers(given, ["turbo"], 3.6, {}) == 0


def test_waiting_requests_need_workers_before_any_arrival_was_counted() -> None:
    # 100 images of 1.78 s within five seconds.
    assert needed_workers(context(0), ["sd15"], 3.6, {"sd15": 1}) == 1
    assert needed_workers(context(0), ["sd15"], 3.6, {"sd15": 100}) == 36


def test_model_without_profile_needs_one_worker() -> None:
    assert needed_workers(context(0, ModelDemand("new", 50.0)), ["new"], 3.6, {}) == 1


def test_starts_from_the_cache_reduce_the_need() -> None:
    starts = (StartShare(0, 1, step_count=50), StartShare(25, 1, step_count=50))
    given = context(0, ModelDemand("sd15", 4.5, starts=starts))

    # A batch of two now takes 1.62 s, less than half of the SLO: 7.29 erlangs and 1.22 runs of slack need 10 servers.
    assert saved_share(given.demand[0]) == 0.25
    assert needed_workers(given, ["sd15"], 3.6, {}) == 5


def test_saved_share_counts_requests_of_unknown_length_as_whole() -> None:
    starts = (StartShare(0, 3), StartShare(25, 1, step_count=50))

    assert saved_share(ModelDemand("sd15", 1.0, starts=starts)) == 0.125
    assert saved_share(ModelDemand("sd15", 1.0)) == 0.0


@pytest.mark.parametrize(("calls", "replicas"), [(0.0, 0), (0.5, 1), (8.0, 1), (8.05, 1), (9.0, 2), (80.0, 10)])
def test_needed_for_calls_divides_by_the_calls_of_a_replica(calls: float, replicas: int) -> None:
    assert needed_for_calls(calls, 8.0) == replicas


def test_dwell_window_rises_at_once_and_falls_to_the_most_of_the_dwell() -> None:
    window = DwellWindow(60.0, 0.0, 3)

    assert [window.update(now_s, needed) for now_s, needed in [(10.0, 2), (20.0, 7), (50.0, 4), (79.0, 1)]] == [
        3,
        7,
        7,
        7,
    ]
    assert [window.update(now_s, 1) for now_s in (81.0, 111.0)] == [4, 1]


def test_dwell_window_keeps_its_count_for_a_dwell_after_a_move() -> None:
    window = DwellWindow(60.0, 0.0, 5)
    window.hold(50.0)

    assert [window.update(now_s, 2) for now_s in (70.0, 109.0, 111.0)] == [5, 5, 2]


def test_dwell_of_zero_follows_the_need() -> None:
    window = DwellWindow(0.0, 0.0, 5)

    assert [window.update(now_s, needed) for now_s, needed in [(1.0, 2), (2.0, 4), (3.0, 0)]] == [2, 4, 0]


def test_forecasts_begin_with_the_first_value_and_forget_what_is_missing() -> None:
    forecasts = Forecasts(settles=False)
    forecasts.update(100.0, {"a": 8.0})
    forecasts.update(101.0, {"a": 0.0})

    assert forecasts.ahead("a") == pytest.approx(7.2)
    for second in range(102, 300):
        forecasts.update(float(second), {})
    assert forecasts.ahead("a") == 0.0
    assert forecasts.ahead("unknown", 60.0) == 0.0


def test_settling_forecasts_cover_forty_arrivals() -> None:
    forecasts = Forecasts(settles=True)
    forecasts.update(0.0, {"slow": 1.0})
    forecasts.update(1.0, {"slow": 2.0})

    assert forecasts.ahead("slow") == pytest.approx(1.0 + 1.0 / 40)


def test_burst_counts_before_the_average_follows_it() -> None:
    forecasts = Forecasts(settles=True)
    for second in range(0, 100, 5):
        forecasts.update(float(second), {"a": 0.2})
    forecasts.update(100.0, {"a": 4.0})

    # Twenty arrivals in five seconds are surely more than 11.05; the average covers two minutes.
    assert forecasts.ahead("a") == pytest.approx((20 - 2 * 20**0.5) / 5)


def test_chance_arrivals_are_no_burst() -> None:
    forecasts = Forecasts(settles=True)
    for second in range(0, 100, 5):
        forecasts.update(float(second), {"a": 0.2})
    forecasts.update(100.0, {"a": 0.8})

    assert forecasts.ahead("a") < 0.25


def test_forecast_of_a_rising_rate_is_ahead_of_it_and_of_a_falling_one_is_the_present() -> None:
    rising, falling = Forecasts(settles=True), Forecasts(settles=True)
    for second in range(600):
        rising.update(float(second), {"a": 10.0 + 0.05 * second})
        falling.update(float(second), {"a": 40.0 - 0.05 * second})

    # 39.95 a second by then, and three more in a minute.
    assert rising.ahead("a") == pytest.approx(39.95, abs=0.2)
    assert rising.ahead("a", 60.0) == pytest.approx(42.95, abs=0.4)
    assert falling.ahead("a", 60.0) == falling.ahead("a") == pytest.approx(10.05, abs=0.2)


def test_no_slo_allows_a_wait_as_long_as_a_run() -> None:
    assert needed_workers(context(0, ModelDemand("turbo", 5.0)), ["turbo"], math.inf, {}) >= 1
