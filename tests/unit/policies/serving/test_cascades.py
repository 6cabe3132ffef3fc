import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.models import Handover
from pentimento.policies.allocation import AllocationContext, ModelDemand
from pentimento.policies.serving.cascade_problem import CascadeProblem, CascadeSolution, grid, solve
from pentimento.policies.serving.cascades import CascadeAllocator
from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.settings import DeferralCurve, ServingSettings
from tests.unit.policies.serving.fleets import context, counts, decide, profiles, repeat, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, discriminator_s=0.01)
COSTS = st.lists(st.floats(0.05, 4.0), min_size=1, max_size=3).map(
    lambda seconds: tuple(BatchCost(2**power, s) for power, s in enumerate(sorted(seconds)))
)


def brute_force(problem: CascadeProblem) -> float | None:
    """The largest t over every x1, x2, b1, b2, t."""
    best = None
    pairs = itertools.product(problem.light, problem.heavy, problem.thresholds, range(1, problem.device_count + 1))
    for light, heavy, threshold, x1 in pairs:
        deferred = problem.deferral.share(threshold)
        light_s = light.latency_s + problem.light_queue_s(light) + problem.discriminator_s
        heavy_s = heavy.latency_s + problem.heavy_queue_s(heavy)
        latency_s = light_s + (heavy_s if deferred > 0 or not problem.relaxed else 0)
        x2 = problem.device_count - x1
        fits = x1 * light.throughput >= problem.demand * (1 - 1e-9)
        fits &= x2 * heavy.throughput >= problem.demand * deferred * (1 - 1e-9) and (x2 > 0 or deferred == 0)
        if fits and latency_s <= problem.slo_s and (best is None or threshold > best):
            best = threshold
    return best


@settings(max_examples=60, deadline=None)
@given(
    demand=st.floats(0.1, 40.0),
    device_count=st.integers(1, 12),
    slo_s=st.floats(0.5, 8.0),
    light=COSTS,
    heavy=COSTS,
    queue_s=st.floats(0.0, 2.0),
    power=st.floats(0.3, 3.0),
    discriminator_s=st.sampled_from([0.0, 0.3, 1.5]),
    relaxed=st.booleans(),
)
def test_enumeration_finds_the_optimum_of_the_problem(
    demand: float,
    device_count: int,
    slo_s: float,
    light: tuple[BatchCost, ...],
    heavy: tuple[BatchCost, ...],
    queue_s: float,
    power: float,
    discriminator_s: float,
    relaxed: bool,
) -> None:
    curve = DeferralCurve(grid(11), tuple(t**power for t in grid(11)))
    wait = lambda cost: queue_s  # noqa: E731
    problem = CascadeProblem(
        demand, device_count, slo_s, light, heavy, curve, grid(11), wait, wait, discriminator_s, relaxed
    )

    found = solve(problem)

    assert (found.threshold if found.feasible else None) == brute_force(problem)


def test_what_cannot_be_carried_becomes_an_admission_rate() -> None:
    light, heavy = (BatchCost(1, 1.0),), (BatchCost(1, 4.0),)
    nothing = lambda cost: 0.0  # noqa: E731
    problem = CascadeProblem(16.0, 4, 2.0, light, heavy, DeferralCurve(), grid(5), nothing, nothing)

    found = solve(problem)

    assert found == CascadeSolution(4, 0, 1, 1, 0.0, 1.0, feasible=False, admission_rate=0.25)


def test_the_threshold_falls_as_demand_rises() -> None:
    allocator = CascadeAllocator(SETTINGS)

    thresholds = [
        decide(allocator, context(16, ModelDemand("turbo", rate))).threshold("turbo")
        for rate in (4.0, 12.0, 20.0, 30.0)
    ]

    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[0] > 2 * thresholds[-1]


def test_a_registered_hand_over_is_what_plans_say_and_count_with() -> None:
    """Its discriminator scores by its digest; of two fifths of its steps the heavy model is spared, so more go on."""
    handover = Handover("turbo>sd15", "sha256:d", (0.0, 1.0), (0.0, 1.0), reuse_share=0.4)
    asked = context(16, ModelDemand("turbo", 20.0))

    reusing = decide(CascadeAllocator(SETTINGS.handing_over(handover)), asked)
    full = decide(CascadeAllocator(SETTINGS), asked)

    first = reusing.cascades[0].stages[0]
    assert (first.discriminator, first.discriminator_digest, first.reuse_share) == ("turbo>sd15", "sha256:d", 0.4)
    assert reusing.threshold("turbo") > full.threshold("turbo") > 0.0


def test_what_scoring_takes_is_what_discriminators_measured_unless_it_is_stated() -> None:
    """A discriminator that takes four of five seconds leaves the heavy model no time."""
    asked = context(16, ModelDemand("turbo", 4.0))
    slow = replace(asked, profiles=(*asked.profiles, *profiles(**{"turbo>sd15": {1: 4.0}})))
    unstated = replace(SETTINGS, discriminator_s=0.0)

    assert decide(CascadeAllocator(unstated), asked).threshold("turbo") > 0.0
    assert decide(CascadeAllocator(unstated), slow).threshold("turbo") == 0.0
    assert decide(CascadeAllocator(SETTINGS), slow) == decide(CascadeAllocator(SETTINGS), asked)


def test_every_device_gets_work_and_the_light_ones_carry_the_demand() -> None:
    decision = decide(CascadeAllocator(SETTINGS), context(16, ModelDemand("turbo", 20.0)))

    count = counts(decision)
    batch = next(a.max_batch_size for a in decision.assignments if a.model == "turbo")
    assert sum(count.values()) == 16
    assert count["turbo"] * batch / {1: 0.1, 2: 0.15, 4: 0.22, 8: 0.41, 16: 0.77}[batch] >= 20.0 * 1.05


def test_a_long_queue_leaves_no_time_for_the_heavy_model() -> None:
    calm = context(16, ModelDemand("turbo", 20.0), ModelDemand("sd15", 5.0, queue_length=2))
    swamped = context(16, ModelDemand("turbo", 20.0), ModelDemand("sd15", 5.0, queue_length=40))

    assert decide(CascadeAllocator(SETTINGS), calm).threshold("turbo") > 0
    assert decide(CascadeAllocator(SETTINGS), swamped).threshold("turbo") == 0


def test_more_deferrals_than_were_profiled_lower_the_threshold() -> None:
    allocator = CascadeAllocator(SETTINGS)
    as_profiled = context(16, ModelDemand("turbo", 20.0))
    threshold = decide(allocator, as_profiled).threshold("turbo")
    as_seen = context(16, ModelDemand("turbo", 20.0, deferred_share=min(1.6 * threshold, 0.95)))

    last, _ = repeat(allocator, as_seen, times=30, every_s=5.0)

    assert last.threshold("turbo") < 0.8 * threshold


def test_demand_is_averaged_and_not_taken_at_its_word() -> None:
    allocator = CascadeAllocator(SETTINGS)
    calm = decide(allocator, context(16, ModelDemand("turbo", 5.0)))

    burst = decide(allocator, replace(context(16, ModelDemand("turbo", 30.0), now_s=1.0), last=calm))

    assert burst.memory[0] == pytest.approx(5.0 + 25.0 / 3.1)


def test_the_average_of_demand_does_not_hang_on_how_often_it_is_looked_at() -> None:
    allocator = CascadeAllocator(replace(SETTINGS, expected_per_s=5.0))
    busy = context(16, ModelDemand("turbo", 30.0))

    often, _ = repeat(allocator, busy, times=11, every_s=1.0)
    seldom, _ = repeat(allocator, busy, times=3, every_s=5.0)

    assert often.memory[0] == pytest.approx(seldom.memory[0])


def test_the_expected_demand_holds_until_something_was_seen() -> None:
    decision = decide(CascadeAllocator(replace(SETTINGS, expected_per_s=8.0)), context(16))

    assert decision.memory[0] == 8.0


def test_the_queue_that_counts_is_the_average_one() -> None:
    allocator = CascadeAllocator(SETTINGS)
    empty_now = ModelDemand("sd15", 5.0, queue_length=0, mean_queue_length=40.0)

    decision = decide(allocator, context(16, ModelDemand("turbo", 20.0), empty_now))

    assert decision.threshold("turbo") == 0


@pytest.mark.parametrize("rate", [0.0, 1e4])
def test_no_demand_and_far_too_much_give_a_plan(rate: float) -> None:
    decision = decide(CascadeAllocator(SETTINGS), context(16, ModelDemand("turbo", rate)))

    assert sum(counts(decision).values()) == 16
    assert 0 < decision.admission_rate <= 1


def test_a_model_without_a_profile_is_not_planned() -> None:
    nobody_knows = AllocationContext(0.0, (worker(0),), (ModelDemand("turbo", 1.0),))

    with pytest.raises(FailedPrecondition, match="turbo has no profile"):
        CascadeAllocator(SETTINGS)(nobody_knows)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 1))
def test_a_curve_of_samples_counts_those_that_are_not_above_the_threshold(samples: list[float], t: float) -> None:
    curve = DeferralCurve.of(samples, count=101)

    index = math.floor(t * 100)
    low, high = (sum(s <= step / 100 for s in samples) / len(samples) for step in (index, min(index + 1, 100)))
    assert low - 1e-9 <= curve.share(t) <= high + 1e-9


@given(st.floats(0.001, 0.999))
def test_shares_in_the_middle_tell_most_about_the_curve(share: float) -> None:
    curve = DeferralCurve()

    assert 0 < curve.tells(share) <= curve.tells(0.203) + 1e-4 <= 1 + 1e-4
    assert curve.tells(0.95) < 0.1 * curve.tells(0.3)
    assert curve.tells(0.0) == curve.tells(1.0) == 0


def test_a_few_pictures_too_many_near_the_end_of_the_curve_do_not_bend_it() -> None:
    allocator = CascadeAllocator(SETTINGS)
    calm = decide(allocator, context(16, ModelDemand("turbo", 13.6)))
    threshold = calm.threshold("turbo")
    as_seen = context(16, ModelDemand("turbo", 13.6, deferred_share=0.98 * threshold), now_s=5.0)

    after = decide(allocator, replace(as_seen, last=calm))

    assert threshold > 0.9
    assert after.memory[1] == pytest.approx(1.0, abs=0.01)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 0.99), st.floats(0.2, 5.0))
def test_drawn_confidences_are_deferred_as_the_curve_says(quantile: float, exponent: float) -> None:
    curve = DeferralCurve(grid(21), grid(21)).bent(exponent)

    assert curve.share(curve.confidence(quantile)) == pytest.approx(quantile, abs=1e-6)


def test_a_discriminator_that_takes_the_whole_slo_leaves_no_time_for_the_heavy_model() -> None:
    slow = replace(SETTINGS, discriminator_s=SETTINGS.slo_s)
    asked = context(16, ModelDemand("turbo", 4.0))

    assert decide(CascadeAllocator(SETTINGS), asked).threshold("turbo") > 0
    assert decide(CascadeAllocator(slow), asked).threshold("turbo") == 0
