"""Requests that wait beyond the SLO, in the plans of the joint policy."""

from dataclasses import replace

import pytest

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.entry import NOISE
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.policies.plan.joint.problem import AllocationSolution, Component, Course, PlannedPool
from pentimento.policies.plan.joint.routes import backlogs, beside_others, kind_of
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from tests.lab.simulator.scenarios import arrivals, cascade, run
from tests.unit.policies.plan.fleets import context, counts, decide, repeat

QUALITIES = (ModelQuality("sd15", 1.0), ModelQuality("turbo", 0.8, 0.2, 0.95))
ALLOCATOR = JointPolicy(ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, qualities=QUALITIES))


def waiting(count: int, mean: float | None = None, rate: float = 6.0) -> PlanInput:
    """Return requests that wait for the heavy model; eight devices have carried that rate for a while."""
    last, _ = repeat(ALLOCATOR, context(8, ModelDemand("sd15", rate)), 3, 5.0)
    demand = ModelDemand("sd15", rate, queue_length=count, mean_queue_length=mean)
    return replace(context(8, demand, now_s=15.0), last=last)


def found(seen: PlanInput, slo_s: float = 5.0) -> dict[str, float]:
    kind = kind_of(seen.workers()[0])
    costs = {kind: (BatchCost(1, 1.78), BatchCost(2, 2.16))}
    return backlogs(seen, [Component("sd15", costs)], slo_s)


def test_backlogs_requests_begun_within_half_slo_are_in_time() -> None:
    """Seven devices in batches of two begin 6.48 a second; 2.16 s of the 5 s are service, which leaves 2.84 s."""
    seen = waiting(100)
    assert counts(seen.last) == {"sd15": 7, "turbo": 1}

    assert found(seen) == {"sd15": pytest.approx(100 - 7 * 2 / 2.16 * (5.0 - 2.16) / 2)}
    assert found(waiting(9)) == {}


@pytest.mark.parametrize(("count", "mean", "beyond"), [(100, 50.0, 50.0), (50, 100.0, 50.0), (100, 0.0, None)])
def test_backlogs_count_current_and_mean_queue(count: int, mean: float, beyond: float | None) -> None:
    """An SLO that a run already breaks leaves no time to wait."""
    assert found(waiting(count, mean), slo_s=2.0).get("sd15") == beyond


def test_backlogs_without_planned_device_count_all() -> None:
    seen = waiting(3)
    others = tuple(replace(one, model="turbo") for one in seen.last.plan.assignments)

    assert found(replace(seen, last=Decision(replace(seen.last.plan, assignments=others)))) == {"sd15": 3}


def heavy_share(decision: Decision) -> float:
    """Return the share of requests from noise that go to the heavy model, without deferred ones."""
    heavy = [route for pool in decision.plan.pools if pool.model == "sd15" for route in pool.routes]
    return sum(route.share for route in heavy if route.route == NOISE)


def test_plan_serves_backlog_before_quality_without_refusals() -> None:
    calm, late = decide(ALLOCATOR, waiting(0, rate=7.0)), decide(ALLOCATOR, waiting(300, rate=7.0))

    assert heavy_share(late) < 0.6 < heavy_share(calm)
    assert late.plan.admission_rate == 1.0
    assert len({one.max_batch_size for one in late.plan.assignments if one.model == "sd15"}) == 1


def test_plan_ignores_queue_within_slo() -> None:
    assert decide(ALLOCATOR, waiting(5)) == decide(ALLOCATOR, waiting(0))


def test_backlog_moves_into_used_batches() -> None:
    """Waiting requests go to the pool that serves new ones: a pool of larger batches would have no requests."""
    small, large, far = (PlannedPool("m", kind, size) for kind, size in (("a", 2), ("a", 8), ("b", 8)))
    noise, late = "noise:m", "backlog of m"
    rates = {Course(noise, (small,)): 1.0, Course(late, (large,)): 0.5, Course(late, (far,)): 0.25}
    solution = AllocationSolution({small: 3, large: 2, far: 1}, rates, 1.0, 1.0)

    moved = beside_others(solution)

    assert moved.units == {small: 5, far: 1}
    assert moved.rates == {Course(noise, (small,)): 1.0, Course(late, (small,)): 0.5, Course(late, (far,)): 0.25}


@pytest.mark.slow
def test_simulated_burst_is_worked_off() -> None:
    """Forty a second for half a minute, then the capacity of seven of eight devices: all these were late, as long as
    that load lasted."""
    burst = [index / 40.0 for index in range(1_200)]
    later = [30.0 + index / 6.0 for index in range(1, 1_200)]
    scenario = cascade("joint", devices=8, rate=5.0, answers_late=True)
    dataplane = replace(scenario.dataplane, drop_late=False, fall_back=False)

    records = run(replace(scenario, dataplane=dataplane), arrivals([*burst, *later], steps=50))

    last = [record for record in records if record.arrived_s > 180.0]
    assert len(last) == 299
    assert sum(record.outcome.violation for record in last) == 0
