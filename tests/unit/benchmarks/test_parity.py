"""Test the pure parts of `parity`, without a suite: delays, speeds that are recovered from simulated runs with known
ones, the host's share of the machine, and the figures."""

import time
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import psutil
import pytest

from benchmarks import seen_speed
from benchmarks.parity import SIMULATIONS, Side, Turn, pair, rate_and_slo, scenario_of, share_deferred
from benchmarks.parity_figures import (
    DIAGNOSED,
    PREDICTED,
    OutcomeTally,
    figures,
    interval,
    latencies_apart,
    p50_of,
    violations_apart,
)
from benchmarks.seen_speed import (
    ObservedRun,
    changes_seen,
    delays_of,
    image_times,
    speeds_seen,
    with_course,
    with_speeds,
)
from benchmarks.stolen_time import STAT, StolenTime, WhatIsLeft, busy_and_stolen
from benchmarks.suites.emulated import FLEETS, capacity_per_s, steady_load
from lab.emulation.fleet_file import read_fleet
from lab.emulation.speed import SpeedChanges
from lab.runs import Outcome, RequestRecord, StageSpan
from lab.runs.measure import at_most
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario import Delays
from tests.lab.simulator.scenarios import one_model

HEAVY = Side("heavy-16", lambda: None, FLEETS / "heavy-16.toml", "sd15", 50)
STAGES = (
    StageSpan("accept", 10.0, 10.5),
    StageSpan("route", 10.5, 10.75),
    StageSpan("queue", 10.75, 12.0),
    StageSpan("attempt", 12.0, 12.125),
    StageSpan("send", 12.125, 12.25),
    StageSpan("worker.start", 12.25, 12.25),
    StageSpan("worker.queue", 12.25, 13.0),
    StageSpan("worker.decode", 14.0, 14.5),
    StageSpan("receive", 14.5, 14.75),
)
RECORD = RequestRecord("r", "t", "standard", "sd15", 10.0, 10.0, 15.5, Outcome.COMPLETED, stages=STAGES)


# Delays


def test_delays_exclude_queues_and_devices() -> None:
    delays = delays_of([RECORD, RECORD], Delays())

    found = [delays.accept, delays.route, delays.attempt, delays.execute, delays.result, delays.answer]
    assert [cost.mean_s for cost in found] == pytest.approx([0.5, 0.25, 0.125, 0.125, 0.25, 0.75])


def test_delays_skip_requests_without_stages() -> None:
    others = [replace(RECORD, outcome=Outcome.DROPPED), replace(RECORD, deferred=True), replace(RECORD, stages=())]

    assert delays_of([*others, RECORD], Delays()).answer.sample_count == 1
    with pytest.raises(RuntimeError, match="answered no request"):
        delays_of(others, Delays())


def test_discriminator_time_is_separate_delay() -> None:
    delays = delays_of([replace(RECORD, stages=(*STAGES, StageSpan("score", 14.75, 15.0)))], Delays())

    assert (delays.score.mean_s, delays.answer.mean_s) == pytest.approx((0.25, 0.5))


# Loads and figures


@pytest.mark.parametrize(("threshold", "share"), [(0.0, 0.0), (0.25, 0.1), (0.5, 0.2), (0.75, 0.6), (1.0, 1.0)])
def test_share_deferred_interpolates_curve(threshold: float, share: float) -> None:
    assert share_deferred(((0.0, 0.0), (0.5, 0.2), (1.0, 1.0)), threshold) == pytest.approx(share)


def test_capacity_assumes_full_batches() -> None:
    assert capacity_per_s(read_fleet(HEAVY.fleet), "sd15") == pytest.approx(16 * 4 / 3.68)
    assert rate_and_slo(HEAVY) == pytest.approx((16 * 4 / 3.68, 2 * 3.68))


def test_simulated_run_matches_another_seed(tmp_path: Path) -> None:
    scenario, (rate, slo_s) = scenario_of(HEAVY, tmp_path), rate_and_slo(HEAVY)
    workload = steady_load(1.3 * rate, 20.0, slo_s, seed=5)
    turns = [Turn(1.3, 1.3 * rate, workload, scenario, Simulation(scenario, workload, Random(99)).run())]

    found = pair(HEAVY.name, turns)
    predicted, diagnosed = (figures([replace(found, side=f"real, {kind}")]) for kind in (PREDICTED, DIAGNOSED))

    assert len(found.simulated) == SIMULATIONS
    assert found.live.overall.violations > 0
    assert found.violations_points < 3.0
    assert found.percent(p50_of) < 5.0
    assert found.quality_percent is not None
    assert all(figure.value is not None for figure in predicted)
    assert predicted[0].target == at_most(1.1, "points")
    assert {one.target.limit for one in diagnosed} == {None}


def tally(violations: int, *latencies_s: float) -> OutcomeTally:
    return OutcomeTally(violations, 10, np.array(latencies_s))


# A load played in two rounds: each live, and simulated once.
ROUNDS = [(tally(1, 1.0), tally(2, 1.25)), (tally(3, 3.0), tally(3, 3.75))]


def test_compared_load_covers_all_rounds() -> None:
    assert violations_apart(ROUNDS) == pytest.approx(100 * (5 - 4) / 20)
    assert latencies_apart(50, ROUNDS) == pytest.approx(25.0)


def test_interval_resamples_rounds() -> None:
    found = interval([ROUNDS], lambda loads: violations_apart(loads[0]))

    # The first round is 10 points apart, the second 0.
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.0, 10.0))
    assert interval([ROUNDS[:1]], lambda loads: violations_apart(loads[0])) is None


# Speeds

SCENARIO = one_model({1: 1.0, 2: 1.2, 4: 1.8, 8: 3.2}, steps=50, answers_late=False)
FOUR_SHARES = WhatIsLeft((0.5, 1.0, 0.7, 0.9) * 10, 1.0)


def run_on(device: Scenario, duration_s: float) -> ObservedRun:
    """Return a run of a device with known costs and an unknown speed."""
    workload = steady_load(3.2, duration_s, 7.0, seed=0, steps=50, model="m")
    return ObservedRun(SCENARIO, workload, Simulation(device, workload, Random(99)).run())


def image(began_s: float, seconds: float) -> RequestRecord:
    denoised = StageSpan("worker.denoise", began_s, began_s + 0.9 * seconds)
    return replace(RECORD, stages=(denoised, StageSpan("worker.decode", 0.0, began_s + seconds)))


def test_image_times_use_first_and_last_device_moment() -> None:
    found = image_times([image(0.0, 1.0), image(1.0, 2.0), image(3.0, 3.0)])

    assert (found.mean_s, found.spread) == pytest.approx((2.0, (2 / 3) ** 0.5 / 2.0))


def test_image_times_of_lasting_speed_correlate() -> None:
    slow_then_fast = [image(now, 2.0) for now in range(0, 20, 2)] + [image(20.0 + now, 1.0) for now in range(20)]
    by_turns = [image(1.5 * (number - odd) + odd, 1.0 + odd) for number in range(20) for odd in [number % 2]]

    assert image_times(slow_then_fast).persistence > 0.7
    assert image_times(by_turns).persistence < 0.0


@pytest.mark.parametrize("known", [lambda one: one, partial(with_course, course=FOUR_SHARES)], ids=["steady", "stolen"])
def test_speeds_seen_recovers_known_speed(known: "partial[Scenario]") -> None:
    seen = run_on(known(with_speeds(SCENARIO, {"m": 0.8})), 40.0)

    assert speeds_seen(replace(seen, scenario=known(SCENARIO)))["m"] == pytest.approx(0.8, rel=0.05)


def test_changes_seen_recovers_known_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_speed, "SEEDS", range(1))

    found = changes_seen([run_on(with_course(SCENARIO, SpeedChanges(0.2, period_s=4.0)), 100.0)])

    assert found.variation == pytest.approx(0.2, rel=0.3)
    assert 1.0 < found.period_s < 16.0
    assert changes_seen([run_on(SCENARIO, 40.0)]).variation < 0.03


def test_both_courses_multiply() -> None:
    scenario = with_course(with_course(SCENARIO, WhatIsLeft((0.5, 1.0), 3.0)), WhatIsLeft((0.5, 0.8, 1.0), 2.0))

    course = scenario.devices[0].speed_changes.speeds(Random(1))

    assert list(islice(course, 4)) == [(0.25, 2.0), (0.4, 1.0), (0.8, 1.0), (1.0, inf)]
    assert replace(scenario, devices=SCENARIO.devices) == SCENARIO


# Stolen time


def test_busy_and_stolen_equal_psutil_counts() -> None:
    before = psutil.cpu_times()
    busy, stolen = busy_and_stolen(STAT.read_text())
    after = psutil.cpu_times()

    assert before.steal <= stolen / 100 <= after.steal
    assert before.user + before.system <= busy / 100 <= sum(after) - after.idle - after.iowait


def test_left_share_is_by_period(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen = StolenTime()
    monkeypatch.setattr(stolen, "_samples", [(0.0, 100.0, 10.0), (1.0, 150.0, 10.0), (2.0, 180.0, 30.0)])

    assert stolen.left(0.0, 2.0, period_s=1.0).shares == pytest.approx((1.0, 0.6))
    assert stolen.share() == pytest.approx(0.2)


def test_stolen_time_samples_until_exit() -> None:
    began_s = time.monotonic()
    with StolenTime() as stolen:
        time.sleep(0.6)

    left = stolen.left(began_s, time.monotonic(), period_s=0.2)

    assert len(left.shares) >= 3
    assert all(0.0 < share <= 1.0 for share in left.shares)
