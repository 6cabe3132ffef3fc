"""DiffServe's ablations and relatives: static threshold, AIMD batching, no queueing model, static cascade."""

from dataclasses import replace

import pytest

from lab.planners.ablations import AblatedCascade, StaticCascade
from pentimento.policies.allocation import AllocationDecision, ModelDemand
from pentimento.policies.serving.cascade_problem import CascadeSolution
from pentimento.policies.serving.settings import ServingSettings
from tests.unit.policies.serving.fleets import context, counts, decide, profiles, repeat

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, discriminator_s=0.01)


def test_aimd_halves_its_batches_after_violations_and_adds_one_otherwise() -> None:
    allocator = AblatedCascade(SETTINGS, aimd=True)
    calm = context(16, ModelDemand("turbo", 5.0), ModelDemand("sd15", 1.0))
    grown, _ = repeat(allocator, calm, times=5, every_s=5.0)
    bad = context(16, ModelDemand("turbo", 5.0, violation_count=3), ModelDemand("sd15", 1.0))

    shrunk = decide(allocator, replace(bad, last=grown))

    assert grown.memory[4:6] == (6.0, 6.0)
    assert shrunk.memory[4:6] == (3.0, 7.0)


def test_aimd_adds_none_beyond_what_was_measured() -> None:
    """Batches of up to 32 may be chosen; the light model's costs are known up to 8, the heavy one's up to 4."""
    known = profiles(turbo={1: 0.1, 8: 0.4}, sd15={1: 1.8, 4: 3.7})
    asked = replace(context(16, ModelDemand("turbo", 8.0), ModelDemand("sd15", 1.0)), profiles=known)

    last, _ = repeat(AblatedCascade(SETTINGS, aimd=True), asked, times=20, every_s=5.0)

    assert {(one.model, one.max_batch_size) for one in last.assignments} == {("turbo", 8), ("sd15", 4)}
    assert last.memory[4:6] == (8.0, 4.0)


def test_aimd_learns_nothing_from_a_pool_that_nobody_asks() -> None:
    last, _ = repeat(AblatedCascade(SETTINGS, aimd=True), context(16, ModelDemand("turbo", 5.0)), 5, 5.0)

    assert last.memory[4:6] == (6.0, 1.0)


def test_aimd_finds_out_what_a_batch_costs_by_violations_and_not_beforehand() -> None:
    asked = context(16, ModelDemand("turbo", 5.0), ModelDemand("sd15", 1.0))

    last, _ = repeat(AblatedCascade(SETTINGS, aimd=True), asked, times=20, every_s=5.0)

    heavy = [assignment for assignment in last.assignments if assignment.model == "sd15"]
    assert heavy[0].max_batch_size == 21
    assert last.threshold("turbo") > 0


def test_a_fixed_threshold_stays_where_it_is_while_devices_move() -> None:
    allocator = AblatedCascade(SETTINGS, fixed_threshold=0.3)

    low = decide(allocator, context(16, ModelDemand("turbo", 5.0)))
    high = decide(allocator, context(16, ModelDemand("turbo", 25.0)))

    assert low.threshold("turbo") == high.threshold("turbo") == 0.3
    assert counts(low)["turbo"] < counts(high)["turbo"]


def test_the_static_cascade_heeds_the_peak_alone() -> None:
    allocator = StaticCascade(replace(SETTINGS, peak_per_s=20.0))

    low = decide(allocator, context(16, ModelDemand("turbo", 1.0)))
    high = decide(allocator, context(16, ModelDemand("turbo", 500.0)))

    assert low == high
    assert low.threshold("turbo") > 0


def test_a_static_cascade_holds_what_it_was_given() -> None:
    held = CascadeSolution(4, 12, 16, 4, 0.02, 0.0)

    decision = decide(StaticCascade(SETTINGS, held), context(16, ModelDemand("turbo", 500.0)))

    assert counts(decision) == {"sd15": 12, "turbo": 4}
    assert decision.threshold("turbo") == 0.02


@pytest.mark.parametrize(("violations", "before", "after"), [(1, 7.0, 3.0), (2, 1.0, 1.0), (0, 32.0, 32.0)])
def test_aimd_halves_after_the_first_violation_and_stays_within_its_sizes(
    violations: int, before: float, after: float
) -> None:
    demand = ModelDemand("turbo", 4.0, violation_count=violations)
    last = AllocationDecision(memory=(4.0, 1.0, 0.0, 0.0, before, 1.0))

    decision = decide(AblatedCascade(SETTINGS, aimd=True), replace(context(16, demand), last=last))

    assert decision.memory[4] == after


def test_static_cascade_with_a_discriminator_of_the_whole_slo_defers_nothing() -> None:
    slow = replace(SETTINGS, discriminator_s=SETTINGS.slo_s, peak_per_s=4.0)
    asked = context(16, ModelDemand("turbo", 4.0))

    assert decide(StaticCascade(replace(SETTINGS, peak_per_s=4.0)), asked).threshold("turbo") > 0
    assert decide(StaticCascade(slow), asked).threshold("turbo") == 0


def test_no_queueing_model_with_a_long_queue_defers_all_the_same() -> None:
    swamped = context(16, ModelDemand("turbo", 20.0), ModelDemand("sd15", 5.0, queue_length=40))
    blind = AblatedCascade(replace(SETTINGS, slo_s=6.0), queueing_model=False)

    assert decide(blind, swamped).threshold("turbo") > 0


def test_memory_of_a_cascade_ends_with_the_batches_of_aimd_alone() -> None:
    asked = context(8, ModelDemand("turbo", 4.0), ModelDemand("sd15", 1.0))
    plain = decide(AblatedCascade(SETTINGS), asked).memory

    assert decide(AblatedCascade(SETTINGS, aimd=True), asked).memory == (*plain, 2.0, 2.0)
    assert len(plain) == 4


def test_static_cascade_that_cannot_carry_the_demand_admits_everything() -> None:
    held = CascadeSolution(1, 2, 8, 4, 0.6, 3.0, admission_rate=0.5)

    decision = decide(StaticCascade(SETTINGS, held), context(3))

    assert (decision.admission_rate, decision.memory) == (1.0, ())
