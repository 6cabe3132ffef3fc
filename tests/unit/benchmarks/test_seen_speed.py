"""Test that a device's speed is recovered from simulated runs with a known one."""

from dataclasses import replace
from itertools import islice
from math import inf
from random import Random

import pytest

from benchmarks import seen_speed
from benchmarks.emulated_runs import steady_load
from benchmarks.seen_speed import ObservedRun, changes_seen, image_times, speed_seen, with_course, with_speed
from benchmarks.stolen_time import WhatIsLeft
from lab.emulation.speed import SpeedChanges
from lab.runs import Outcome, RequestRecord, StageSpan
from lab.simulator import Scenario, Simulation
from tests.lab.simulator.scenarios import one_model

SCENARIO = one_model({1: 1.0, 2: 1.2, 4: 1.8, 8: 3.2}, steps=50, answers_late=False)


def run_on(device: Scenario, duration_s: float) -> ObservedRun:
    """Return a run of a device with known costs and an unknown speed."""
    workload = steady_load(3.2, duration_s, 7.0, seed=0, steps=50, model="m")
    return ObservedRun(SCENARIO, workload, Simulation(device, workload, Random(99)).run())


def image(began_s: float, seconds: float) -> RequestRecord:
    stages = (
        StageSpan("worker.denoise", began_s, began_s + 0.9 * seconds),
        StageSpan("worker.decode", 0.0, began_s + seconds),
    )
    return RequestRecord("r", "t", "standard", "m", 0.0, 9.0, 9.0, Outcome.COMPLETED, stages=stages)


def test_image_times_use_first_and_last_device_moment() -> None:
    found = image_times([image(0.0, 1.0), image(1.0, 2.0), image(3.0, 3.0)])

    assert found.mean_s == pytest.approx(2.0)
    assert found.spread == pytest.approx((2 / 3) ** 0.5 / 2.0)


def test_image_times_of_lasting_speed_correlate() -> None:
    slow_then_fast = [image(now, 2.0) for now in range(0, 20, 2)] + [image(20.0 + now, 1.0) for now in range(20)]
    by_turns = [image(1.5 * (number - odd) + odd, 1.0 + odd) for number in range(20) for odd in [number % 2]]

    assert image_times(slow_then_fast).persistence > 0.7
    assert image_times(by_turns).persistence < 0.0


def test_speed_seen_recovers_known_speed() -> None:
    assert speed_seen(run_on(with_speed(SCENARIO, 0.8), 40.0)) == pytest.approx(0.8, rel=0.05)


def test_changes_seen_recovers_known_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_speed, "SEEDS", range(1))
    device = with_course(SCENARIO, SpeedChanges(0.2, period_s=4.0))

    found = changes_seen([run_on(device, 100.0)])

    assert found.variation == pytest.approx(0.2, rel=0.3)
    assert 1.0 < found.period_s < 16.0


def test_speed_seen_recovers_speed_with_stolen_time() -> None:
    left = WhatIsLeft((0.5, 1.0, 0.7, 0.9) * 10, 1.0)
    seen = run_on(with_course(with_speed(SCENARIO, 0.8), left), 40.0)

    assert speed_seen(replace(seen, scenario=with_course(SCENARIO, left))) == pytest.approx(0.8, rel=0.05)


def test_both_courses_multiply() -> None:
    scenario = with_course(with_course(SCENARIO, WhatIsLeft((0.5, 1.0), 3.0)), WhatIsLeft((0.5, 0.8, 1.0), 2.0))

    course = scenario.devices[0].speed_changes.speeds(Random(1))

    assert list(islice(course, 4)) == [(0.25, 2.0), (0.4, 1.0), (0.8, 1.0), (1.0, inf)]


def test_changes_seen_of_steady_device_is_none() -> None:
    assert changes_seen([run_on(SCENARIO, 40.0)]).variation < 0.03


def test_with_speed_keeps_rest_of_scenario() -> None:
    changed = with_course(with_speed(SCENARIO, 0.5), SpeedChanges(0.1))

    assert replace(changed, devices=SCENARIO.devices) == SCENARIO
