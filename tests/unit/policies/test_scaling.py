"""Numbers of replicas by demand, and how they fall."""

import math

import pytest

from pentimento.domain.demand import StartShare
from pentimento.policies.plan.inputs import ModelDemand
from pentimento.policies.scaling import (
    Averages,
    DwellWindow,
    RecentArrivals,
    least_servers,
    needed_for_calls,
    needed_workers,
    saved_share,
)
from tests.unit.policies.plan.fleets import context


def steady(**per_s: float) -> RecentArrivals:
    arrivals = RecentArrivals()
    for second in range(0, 600, 5):
        arrivals.update(float(second), per_s)
    return arrivals


# Erlang C's sum: for 80 erlangs, 82 servers delay 75 % of the requests, and 1 in 4,000 beyond four service times.
@pytest.mark.parametrize(
    ("erlangs", "slack_runs", "servers"),
    [(0.0, 1.0, 1), (0.5, 1.0, 3), (0.5, 4.0, 2), (8.0, 1.0, 12), (8.0, 4.0, 10), (80.0, 4.0, 82), (80.0, 0.25, 92)],
)
def test_least_servers_agrees_with_erlang_c(erlangs: float, slack_runs: float, servers: int) -> None:
    assert least_servers(erlangs, slack_runs) == servers


# A batch of one SD 1.5 image takes 1.78 s: 4.5 images a second are 8.01 erlangs, and 8.9 s of slack five runs.
def test_needed_workers_of_one_model() -> None:
    assert needed_workers(context(0), ["sd15"], 3.6, steady(sd15=4.5), {}) == 12


def test_needed_workers_uses_larger_batches_where_the_slo_allows_them() -> None:
    # Batches of 32 take 25.35 s and serve 1.26 images a second.
    assert needed_workers(context(0), ["sd15"], 60.0, steady(sd15=4.5), {}) == 4


def test_needed_workers_adds_models_with_requests() -> None:
    arrivals = steady(sd15=4.5, turbo=0.0)

    assert needed_workers(context(0), ["sd15", "turbo", "unknown"], 3.6, arrivals, {}) == 12
    assert needed_workers(context(0), ["turbo"], 3.6, arrivals, {}) == 0


def test_waiting_requests_need_workers_before_any_arrival_was_counted() -> None:
    # 100 images of 1.78 s within five seconds, or a minute later.
    assert needed_workers(context(0), ["sd15"], 3.6, RecentArrivals(), {"sd15": 1}) == 1
    assert needed_workers(context(0), ["sd15"], 3.6, RecentArrivals(), {"sd15": 100}) == 36
    assert needed_workers(context(0), ["sd15"], 3.6, RecentArrivals(), {"sd15": 100}, start_s=60.0) == 3


def test_model_without_profile_needs_one_worker() -> None:
    assert needed_workers(context(0), ["new"], 3.6, steady(new=50.0), {}) == 1


def test_starts_from_the_cache_reduce_the_need() -> None:
    starts = (StartShare(0, 1, step_count=50), StartShare(25, 1, step_count=50))
    given = context(0, ModelDemand("sd15", 4.5, starts=starts))

    # A batch of two now takes 1.62 s, less than half of the SLO: 7.29 erlangs and 1.22 runs of slack need 10 servers.
    assert saved_share(given.demand[0]) == 0.25
    assert needed_workers(given, ["sd15"], 3.6, steady(sd15=4.5), {}) == 5


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


def test_averages_begin_with_first_value_and_forget_missing_models() -> None:
    averages = Averages()
    averages.update(100.0, {"a": 8.0})
    averages.update(101.0, {"a": 0.0})

    assert averages.value("a") == pytest.approx(7.2)
    for second in range(102, 300):
        averages.update(float(second), {})
    assert averages.value("a") == 0.0
    assert averages.value("unknown") == 0.0


# Ten a second for ten minutes: no span needs more than their mean.
@pytest.mark.parametrize("slack_s", [1.0, 60.0, 600.0])
def test_rate_of_steady_arrivals_is_their_mean(slack_s: float) -> None:
    assert steady(a=10.0).rate("a", slack_s) == pytest.approx(10.0)


# 40 requests in the last five seconds, after one a second for 295: 335 in all.
@pytest.mark.parametrize(("slack_s", "rate"), [(5.0, 4.0), (20.0, 1.6), (600.0, 335 / 300)])
@pytest.mark.parametrize("updates", [1, 10])
def test_rate_of_burst_is_spread_over_slack(updates: int, slack_s: float, rate: float) -> None:
    arrivals = steady(a=1.0)
    for number in range(1, updates + 1):
        arrivals.update(595.0 + 5.0 * number / updates, {"a": 8.0})

    assert arrivals.rate("a", slack_s) == pytest.approx(rate)


def test_arrivals_are_forgotten_after_five_minutes() -> None:
    arrivals = steady(a=10.0)
    arrivals.update(790.0, {})
    # 105 of the 300 seconds had requests.
    assert arrivals.rate("a", 5.0) == pytest.approx(1050 / 300)

    arrivals.update(900.0, {})
    assert arrivals.rate("a", 5.0) == 0.0


def test_first_arrivals_of_another_model_are_no_mean_of_all_the_time() -> None:
    arrivals = steady(a=10.0)
    arrivals.update(600.0, {"a": 10.0, "b": 0.2})

    assert arrivals.rate("b", 60.0) == pytest.approx(1 / 65)


def test_no_slo_allows_a_wait_as_long_as_a_run() -> None:
    assert needed_workers(context(0), ["turbo"], math.inf, steady(turbo=5.0), {}) >= 1
