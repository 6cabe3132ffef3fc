"""Test latencies on one device against sums computed by hand and queueing theory."""

from dataclasses import replace
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from lab.emulation.costs import ModelCosts, from_latencies
from lab.emulation.jobs import DeviceSettings
from lab.emulation.speed import SpeedChanges
from lab.runs import Outcome
from lab.simulator.scenario import SimulatedModel
from pentimento.profiles.costs import Cost
from tests.lab.simulator.scenarios import REQUESTS, arrivals, one_model, poisson, run

# Ten steps; a batch of two takes half as long again.
SECONDS = {1: 1.0, 2: 1.5}


def latencies(scenario: object, times: list[float], **changes: object) -> list[float]:
    return [round(record.latency_s, 6) for record in run(scenario, arrivals(times, **changes))]  # type: ignore[arg-type]


def test_a_newcomer_joins_at_the_next_step_and_stays_when_the_other_is_done() -> None:
    # 0.5 s: five steps in a batch of one. Then five of both at 0.15 s; the newcomer's last five at 0.1 s each.
    assert latencies(one_model(SECONDS), [0.0, 0.5]) == [1.25, 1.25]


def test_whole_requests_are_batched_where_the_server_does_so() -> None:
    scenario = one_model(SECONDS, device_settings=REQUESTS)

    # The second comes during the first one's batch; the third joins the second's.
    assert latencies(scenario, [0.0, 0.5, 0.6]) == [1.0, 2.0, 1.9]


@pytest.mark.parametrize("settings", [DeviceSettings(), REQUESTS])
def test_device_with_changing_speed_does_the_same_work(settings: DeviceSettings) -> None:
    steady = one_model({1: 1.0}, device_settings=settings)
    changing = replace(steady, devices=(replace(steady.devices[0], speed_changes=SpeedChanges(0.3, period_s=2.0)),))

    records = run(changing, arrivals([0.0] * 2000, deadline_s=1e6))

    ends = sorted(record.ended_s for record in records)
    assert ends[-1] == pytest.approx(2000.0, rel=0.03)
    assert pstdev(later - earlier for earlier, later in pairwise(ends)) == pytest.approx(0.28, rel=0.15)


def test_what_would_be_late_in_the_next_batch_is_dropped_and_its_place_taken() -> None:
    settings = DeviceSettings(steps=False, credit_batches=1_000, drop_after=1.0)
    scenario = one_model({1: 1.0}, answers_late=False, device_settings=settings)
    # One runs until 1.0. Of the waiting requests, the first then has less than a second left, the other has more.
    workload = arrivals([0.0, 0.1, 0.2], deadline_s=1.5)
    aged = replace(workload.arrivals[2], deadline_s=5.0)

    records = run(scenario, replace(workload, arrivals=(*workload.arrivals[:2], aged)))

    assert [(record.outcome, record.ended_s) for record in records] == [
        (Outcome.COMPLETED, 1.0),
        (Outcome.DROPPED, 1.0),
        (Outcome.COMPLETED, 2.0),
    ]


@pytest.mark.parametrize(("preempt", "latencies_s"), [(True, [2.0, 1.0]), (False, [1.0, 1.5])])
def test_a_tighter_deadline_takes_a_running_request_s_place_or_waits(preempt: bool, latencies_s: list[float]) -> None:
    scenario = one_model({1: 1.0}, answers_late=False, device_settings=DeviceSettings(preempt=preempt))
    workload = arrivals([0.0, 0.5], deadline_s=100.0)
    urgent = replace(workload.arrivals[1], deadline_s=2.0)

    records = run(scenario, replace(workload, arrivals=(workload.arrivals[0], urgent)))

    assert [round(record.latency_s, 6) for record in records] == latencies_s


def test_preparing_holds_the_device_and_finishing_does_not() -> None:
    costs = from_latencies("m", 10, {1: 1.0}, prepare=Cost(0.2, 0.0, 1), finish=Cost(0.5, 0.0, 1))
    scenario = one_model({1: 1.0}, models=(SimulatedModel(costs),))

    # The second begins when the first leaves the device at 1.2, and is finished after it.
    assert latencies(scenario, [0.0, 0.0]) == [1.7, 2.9]


def test_device_seconds_are_shared_among_a_batch() -> None:
    records = run(one_model(SECONDS), arrivals([0.0, 0.0]))

    assert [record.device_s for record in records] == [pytest.approx(0.75)] * 2


@pytest.mark.parametrize("load", [0.5, 0.8, 1.2])
def test_waits_of_one_server_follow_lindley(load: float) -> None:
    workload = poisson(load, 300, steps=1)
    records = run(one_model({1: 1.0}, steps=1, device_settings=REQUESTS), workload)

    wait_s, waits = 0.0, [0.0]
    for before, arrival in pairwise(workload.arrivals):
        wait_s = max(0.0, wait_s + 1.0 - (arrival.at_s - before.at_s))
        waits.append(wait_s)
    assert [record.latency_s - 1.0 for record in records] == pytest.approx(waits)


def test_times_vary_as_the_costs_say() -> None:
    costs = from_latencies("m", 10, {1: 1.0}, variation=0.1)
    records = run(one_model({1: 1.0}, models=(SimulatedModel(costs),)), arrivals([3.0 * i for i in range(1_000)]))

    seconds = [record.latency_s for record in records]
    spread = mean((value - mean(seconds)) ** 2 for value in seconds) ** 0.5
    assert mean(seconds) == pytest.approx(1.0, rel=0.01)
    assert spread == pytest.approx(0.1, rel=0.12)


def test_costs_between_measured_batch_sizes_lie_on_the_line() -> None:
    costs: ModelCosts = from_latencies("m", 10, {1: 1.0, 2: 1.5, 4: 3.5})

    assert [round(costs.step(size).mean_s * 10, 6) for size in (1, 2, 3, 4, 9)] == [1.0, 1.5, 2.5, 3.5, 3.5]


def test_images_are_finished_one_after_another() -> None:
    costs = from_latencies("m", 10, {1: 1.0, 2: 1.5}, finish=Cost(0.5, 0.0, 1))
    scenario = one_model(SECONDS, models=(SimulatedModel(costs),))

    assert latencies(scenario, [0.0, 0.0]) == [2.0, 2.5]
