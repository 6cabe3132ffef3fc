"""Test DiffServe's ablations and relatives: static threshold, AIMD batching, no queueing model, static cascade."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.planners.ablations import AimdMemory, StaticCascade, ablated
from pentimento.policies.plan.cascade_problem import CascadeProblem, CascadeSolution, grid
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import Decision, ModelDemand
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings
from tests.unit.policies.plan.fleets import context, counts, decide, profiles, repeat, threshold_of

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, discriminator_s=0.01)


def test_aimd_halves_after_violations_and_adds_one_otherwise() -> None:
    allocator = ablated(SETTINGS, aimd=True)
    calm = context(16, ModelDemand("turbo", 5.0), ModelDemand("sd15", 1.0))
    grown, _ = repeat(allocator, calm, times=5, every_s=5.0)
    bad = context(16, ModelDemand("turbo", 5.0, violation_count=3), ModelDemand("sd15", 1.0))

    shrunk = decide(allocator, replace(bad, last=grown))

    assert grown.memory.batches == (6.0, 6.0)
    assert shrunk.memory.batches == (3.0, 7.0)


def test_aimd_adds_none_beyond_measured_sizes() -> None:
    """Batches of up to 32 may be chosen; the light model's costs are known up to 8, the heavy one's up to 4."""
    known = profiles(turbo={1: 0.1, 8: 0.4}, sd15={1: 1.8, 4: 3.7})
    asked = replace(context(16, ModelDemand("turbo", 8.0), ModelDemand("sd15", 1.0)), profiles=known)

    last, _ = repeat(ablated(SETTINGS, aimd=True), asked, times=20, every_s=5.0)

    assert {(one.model, one.max_batch_size) for one in last.plan.assignments} == {("turbo", 8), ("sd15", 4)}
    assert last.memory.batches == (8.0, 4.0)


def test_aimd_pool_without_requests_keeps_batch() -> None:
    last, _ = repeat(ablated(SETTINGS, aimd=True), context(16, ModelDemand("turbo", 5.0)), 5, 5.0)

    assert last.memory.batches == (6.0, 1.0)


def test_aimd_ignores_costs_beforehand() -> None:
    asked = context(16, ModelDemand("turbo", 5.0), ModelDemand("sd15", 1.0))

    last, _ = repeat(ablated(SETTINGS, aimd=True), asked, times=20, every_s=5.0)

    heavy = [assignment for assignment in last.plan.assignments if assignment.model == "sd15"]
    assert heavy[0].max_batch_size == 21
    assert threshold_of(last.plan, "turbo") > 0


def test_fixed_threshold_stays_while_devices_move() -> None:
    allocator = ablated(SETTINGS, fixed_threshold=0.3)

    low = decide(allocator, context(16, ModelDemand("turbo", 5.0)))
    high = decide(allocator, context(16, ModelDemand("turbo", 25.0)))

    assert threshold_of(low.plan, "turbo") == threshold_of(high.plan, "turbo") == 0.3
    assert counts(low)["turbo"] < counts(high)["turbo"]


def test_static_cascade_plans_for_peak_alone() -> None:
    allocator = StaticCascade(replace(SETTINGS, peak_per_s=20.0))

    low = decide(allocator, context(16, ModelDemand("turbo", 1.0)))
    high = decide(allocator, context(16, ModelDemand("turbo", 500.0)))

    assert low == high
    assert threshold_of(low.plan, "turbo") > 0


def test_static_cascade_keeps_given_solution() -> None:
    held = CascadeSolution((4, 12), (16, 4), (1.0, 0.02), (0.02,))

    decision = decide(StaticCascade(SETTINGS, held), context(16, ModelDemand("turbo", 500.0)))

    assert counts(decision) == {"sd15": 12, "turbo": 4}
    assert threshold_of(decision.plan, "turbo") == 0.02


@pytest.mark.parametrize(("violations", "before", "after"), [(1, 7.0, 3.0), (2, 1.0, 1.0)])
def test_aimd_stays_within_measured_sizes(violations: int, before: float, after: float) -> None:
    demand = ModelDemand("turbo", 4.0, violation_count=violations)
    last = Decision(memory=AimdMemory(4.0, 0.0, (FollowedCurve(SETTINGS.deferral),), (before, 1.0)))

    decision = decide(ablated(SETTINGS, aimd=True), replace(context(16, demand), last=last))

    assert decision.memory.batches[0] == after


def test_static_cascade_slow_discriminator_defers_nothing() -> None:
    slow = replace(SETTINGS, discriminator_s=SETTINGS.slo_s, peak_per_s=4.0)
    asked = context(16, ModelDemand("turbo", 4.0))

    assert threshold_of(decide(StaticCascade(replace(SETTINGS, peak_per_s=4.0)), asked).plan, "turbo") > 0
    assert threshold_of(decide(StaticCascade(slow), asked).plan, "turbo") == 0


def test_no_queueing_model_ignores_long_queue() -> None:
    swamped = context(16, ModelDemand("turbo", 20.0), ModelDemand("sd15", 5.0, queue_length=40))
    blind = ablated(replace(SETTINGS, slo_s=6.0), queueing_model=False)

    assert threshold_of(decide(blind, swamped).plan, "turbo") > 0


def test_aimd_memory_adds_batch_sizes_to_cascade_memory() -> None:
    asked = context(8, ModelDemand("turbo", 4.0), ModelDemand("sd15", 1.0))
    plain = decide(ablated(SETTINGS), asked).memory

    adapted = decide(ablated(SETTINGS, aimd=True), asked).memory
    assert adapted == AimdMemory(plain.demand, plain.at_s, plain.curves, (2.0, 2.0))


def test_static_cascade_admits_excess_demand() -> None:
    held = CascadeSolution((1, 2), (8, 4), (1.0, 0.6), (0.6,), admission_rate=0.5)

    decision = decide(StaticCascade(SETTINGS, held), context(3))

    assert (decision.plan.admission_rate, decision.memory) == (1.0, None)


# One request a second on four devices; a light batch of one takes a second, a heavy one two.
PROBLEM = CascadeProblem(1.0, 4, 9.0, ((BatchCost(1, 1.0),), (BatchCost(1, 2.0),)), (DeferralCurve(),))


@pytest.mark.parametrize(("slo_s", "feasible"), [(0.9, False), (1.0, True)])
def test_relaxed_cascade_defers_nothing_where_heavy_is_late(slo_s: float, feasible: bool) -> None:
    tight, anything = replace(PROBLEM, slo_s=slo_s), context(4)

    found = ablated(SETTINGS, relaxed=True).solution(anything, tight)

    assert not ablated(SETTINGS).solution(anything, tight).feasible
    assert found == CascadeSolution((4, 0), (1, 1), (1.0, 0.0), (0.0,), feasible)


@settings(max_examples=60, deadline=None)
@given(
    demand=st.floats(0.1, 40.0),
    device_count=st.integers(1, 12),
    slo_s=st.floats(0.5, 8.0),
    seconds=st.lists(st.floats(0.05, 4.0), min_size=2, max_size=6),
    queue_s=st.floats(0.0, 2.0),
)
def test_relaxed_cascade_equals_brute_force(
    demand: float, device_count: int, slo_s: float, seconds: list[float], queue_s: float
) -> None:
    half = len(seconds) // 2
    stages = tuple(
        tuple(BatchCost(2**power, one, queue_s) for power, one in enumerate(sorted(part)))
        for part in (seconds[:half], seconds[half:])
    )
    problem = CascadeProblem(demand, device_count, slo_s, stages, (DeferralCurve(),), 0.1, grid(11))
    best = None
    for light, heavy, threshold, x1 in itertools.product(*stages, grid(11), range(1, device_count + 1)):
        x2 = device_count - x1
        latency_s = light.felt_s + 0.1 + (heavy.felt_s if threshold > 0.0 else 0.0)
        fits = x1 * light.throughput >= demand * (1 - 1e-9)
        fits &= x2 * heavy.throughput >= demand * threshold * (1 - 1e-9) and (x2 > 0 or threshold == 0.0)
        if fits and latency_s <= slo_s and (best is None or threshold > best):
            best = threshold

    found = ablated(SETTINGS, relaxed=True).solution(context(1), problem)

    assert (found.thresholds[0] if found.feasible else None) == best
