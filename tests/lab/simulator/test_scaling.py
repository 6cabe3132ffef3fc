"""Test a simulated fleet of a changing size: the HPA's rules, starts, drains, and pods counted as device time."""

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from lab.emulation.costs import from_latencies
from lab.planners.registry import POLICIES
from lab.simulator.scaling import (
    SYNC_S,
    ByController,
    ByQueueLength,
    ByUtilisation,
    FleetLoad,
    ScaledSimulation,
    ScalingLimits,
    quotient,
)
from lab.simulator.scenario import Scenario, SimulatedDevices, SimulatedModel
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating
from pentimento.policies.plan.inputs import PlanInput
from pentimento.policies.plan.settings import ServingSettings

RUN_S = 10.0


@dataclass
class Scripted:
    """Return a scaler that wants the numbers of a list, one per period, then the last one repeatedly."""

    numbers: list[int]
    loads: list[FleetLoad] = field(default_factory=list)

    def look(self, load: FleetLoad) -> None:
        pass

    def wanted(self, load: FleetLoad) -> int:
        self.loads.append(load)
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


def scenario(devices: int) -> Scenario:
    costs = from_latencies("large", 50, {1: RUN_S})
    fleet = (SimulatedDevices(devices, "large"),)
    policy = POLICIES["resident"](ServingSettings("large"))
    return Scenario("scaled", (SimulatedModel(costs),), fleet, policy, default_model="large")


def load_of(rate: float, seconds: float, slo_s: float = 60.0) -> Workload:
    content = Content(slo_classes=(SloClass("standard", slo_s),), steps=50)
    return fluctuating(np.random.default_rng(1), content, [Segment(seconds, rate)])


def simulation(scaler: object, limits: ScalingLimits, workload: Workload, window_s: float = 0.0) -> ScaledSimulation:
    return ScaledSimulation(scenario(limits.most), workload, Random(1), scaler, limits, window_s)


def seen(pods: int, serving: int, utilisation: float = 0.0, requests: int = 0) -> FleetLoad:
    return FleetLoad(0.0, pods, serving, utilisation, requests, PlanInput(0.0, ()))


LOADS: list[tuple[FleetLoad, int]] = [
    # Within the tolerance of a tenth.
    (seen(10, 10, 0.65), 10),
    (seen(10, 10, 0.9), 15),
    (seen(10, 10, 0.3), 5),
    # Two of ten pods do not serve yet, and count as idle: 0.8 × 0.8 / 0.6.
    (seen(10, 8, 0.8), 10),
    (seen(10, 8, 1.0), 14),
    (seen(3, 0), 3),
]


def test_utilisation_follows_the_hpa() -> None:
    for load, pods in LOADS:
        assert ByUtilisation(0.6).wanted(load) == pods, load


@pytest.mark.parametrize(("value", "target", "before", "pods"), [(20, 2.0, 5, 10), (21, 2.0, 10, 10), (3, 2.0, 5, 2)])
def test_quotient_follows_the_hpa(value: float, target: float, before: int, pods: int) -> None:
    assert quotient(value, target, before) == pods
    assert ByQueueLength(target).wanted(seen(before, before, requests=int(value))) == pods


def test_pods_serve_after_their_start_and_count_from_their_order() -> None:
    scaler = Scripted([2, 4])
    run = simulation(scaler, ScalingLimits(2, 8, 40.0), load_of(0.5, 120.0))
    records = run.run()

    # Ordered in the second period, they serve forty seconds later.
    serving = [(load.now_s, load.serving_count) for load in scaler.loads]
    assert [count for at_s, count in serving if at_s < 2 * SYNC_S + 40.0] == [2] * 4
    assert {count for at_s, count in serving if at_s > 2 * SYNC_S + 40.0} == {4}
    ends_s = records and max(record.arrived_s for record in records)
    assert run.finish() == pytest.approx(2 * 30.0 + 4 * (ends_s - 30.0))
    assert run.pod_s_until(60.0) == pytest.approx(2 * 30.0 + 4 * 30.0)


def test_removed_pods_finish_their_images_and_count_until_then() -> None:
    run = simulation(Scripted([6, 1]), ScalingLimits(6, 6, 40.0), load_of(0.4, 200.0, slo_s=1000.0))
    records = run.run()

    assert all(not record.outcome.violation for record in records)
    ends_s = max(record.arrived_s for record in records)
    alone = 6 * 2 * SYNC_S + (ends_s - 2 * SYNC_S)
    # At most five pods finish an image of ten seconds.
    assert alone < run.finish() <= alone + 5 * RUN_S * 1.3
    assert [count for _, count in run.counts][:3] == [6, 1, 1]


def test_window_of_scaling_down_keeps_the_most_of_its_time() -> None:
    run = simulation(Scripted([6, 1]), ScalingLimits(6, 6, 40.0), load_of(0.2, 200.0), window_s=60.0)
    run.run()

    assert [count for _, count in run.counts][:7] == [6, 6, 6, 6, 6, 1, 1]


def test_a_period_grows_the_fleet_tenfold_at_most() -> None:
    run = simulation(Scripted([50]), ScalingLimits(1, 100, 5.0), load_of(0.2, 60.0))
    run.run()

    assert [count for _, count in run.counts][:2] == [10, 50]


def test_controller_s_counts_carry_a_load_with_few_spare_devices() -> None:
    # Two images a second of ten seconds: twenty devices of work, and a little more.
    run = simulation(ByController("large", 60.0, 120.0, 30.0), ScalingLimits(22, 60, 30.0), load_of(2.0, 900.0))
    records = run.run()

    assert sum(record.outcome.violation for record in records) / len(records) < 0.02
    assert all(20 <= count <= 30 for _, count in run.counts[8:])
