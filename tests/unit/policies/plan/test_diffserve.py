"""Plan DiffServe's cascade of two models."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import CascadePlan, PoolPlan, StagePlan, StartThreshold, WorkerAssignment
from pentimento.domain.models import Handover
from pentimento.policies.plan.cascade import CascadeMemory
from pentimento.policies.plan.cascade_problem import CascadeSolution, grid
from pentimento.policies.plan.entry import every_start
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import ModelDemand, PlanInput
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings
from tests.unit.policies.plan.fleets import context, counts, decide, diffserve, profiles, repeat, threshold_of, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, discriminator_s=0.01)


def test_threshold_falls_as_demand_rises() -> None:
    allocator = diffserve(SETTINGS)

    thresholds = [
        threshold_of(decide(allocator, context(16, ModelDemand("turbo", rate))).plan, "turbo")
        for rate in (4.0, 12.0, 20.0, 30.0)
    ]

    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[0] > 2 * thresholds[-1]


def test_registered_handover_is_planned() -> None:
    """The discriminator is identified by its digest. The heavy model skips 0.4 of its steps, so more images are
    deferred."""
    handover = Handover("turbo>sd15", "sha256:d", (0.0, 1.0), (0.0, 1.0), reuse_share=0.4)
    asked = context(16, ModelDemand("turbo", 20.0))

    reusing = decide(diffserve(SETTINGS.handing_over(handover)), asked)
    full = decide(diffserve(SETTINGS), asked)

    first = reusing.plan.cascades[0].stages[0]
    assert (first.discriminator, first.discriminator_digest, first.reuse_share) == ("turbo>sd15", "sha256:d", 0.4)
    assert threshold_of(reusing.plan, "turbo") > threshold_of(full.plan, "turbo") > 0.0


def test_scoring_seconds_are_stated_or_measured() -> None:
    """A discriminator that takes four of five seconds leaves the heavy model no time."""
    asked = context(16, ModelDemand("turbo", 4.0))
    slow = replace(asked, profiles=(*asked.profiles, *profiles(**{"turbo>sd15": {1: 4.0}})))
    unstated, stated = (replace(SETTINGS, discriminator_s=seconds) for seconds in (0.0, 4.0))

    assert threshold_of(decide(diffserve(unstated), asked).plan, "turbo") > 0.0
    assert threshold_of(decide(diffserve(unstated), slow).plan, "turbo") == 0.0
    assert threshold_of(decide(diffserve(stated), asked).plan, "turbo") == 0.0
    assert decide(diffserve(SETTINGS), slow) == decide(diffserve(SETTINGS), asked)


def test_light_devices_carry_demand() -> None:
    decision = decide(diffserve(SETTINGS), context(16, ModelDemand("turbo", 20.0)))

    count = counts(decision)
    batch = next(a.max_batch_size for a in decision.plan.assignments if a.model == "turbo")
    assert sum(count.values()) == 16
    assert count["turbo"] * batch / {1: 0.1, 2: 0.15, 4: 0.22, 8: 0.41, 16: 0.77}[batch] >= 20.0 * 1.05


def test_long_queue_defers_nothing() -> None:
    calm = context(16, ModelDemand("turbo", 20.0), ModelDemand("sd15", 5.0, queue_length=2))
    swamped = context(16, ModelDemand("turbo", 20.0), ModelDemand("sd15", 5.0, queue_length=40))

    assert threshold_of(decide(diffserve(SETTINGS), calm).plan, "turbo") > 0
    assert threshold_of(decide(diffserve(SETTINGS), swamped).plan, "turbo") == 0


def test_burst_is_averaged() -> None:
    allocator = diffserve(SETTINGS)
    calm = decide(allocator, context(16, ModelDemand("turbo", 5.0)))

    burst = decide(allocator, replace(context(16, ModelDemand("turbo", 30.0), now_s=1.0), last=calm))

    assert burst.memory.demand == pytest.approx(5.0 + 25.0 / 3.1)


def test_average_is_independent_of_round_count() -> None:
    allocator = diffserve(replace(SETTINGS, expected_per_s=5.0))
    busy = context(16, ModelDemand("turbo", 30.0))

    often, _ = repeat(allocator, busy, times=11, every_s=1.0)
    seldom, _ = repeat(allocator, busy, times=3, every_s=5.0)

    assert often.memory.demand == pytest.approx(seldom.memory.demand)


def test_expected_demand_holds_until_requests_come() -> None:
    decision = decide(diffserve(replace(SETTINGS, expected_per_s=8.0)), context(16))

    assert decision.memory.demand == 8.0


@pytest.mark.parametrize("rate", [0.0, 1e4])
def test_extreme_demand_gives_a_plan(rate: float) -> None:
    decision = decide(diffserve(SETTINGS), context(16, ModelDemand("turbo", rate)))

    assert sum(counts(decision).values()) == 16
    assert 0 < decision.plan.admission_rate <= 1


def test_model_without_profile_raises() -> None:
    nobody_knows = PlanInput(0.0, (worker(0),), (ModelDemand("turbo", 1.0),))

    with pytest.raises(FailedPrecondition, match="turbo has no profile"):
        diffserve(SETTINGS)(nobody_knows)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 0.99), st.floats(0.2, 5.0))
def test_drawn_confidences_follow_curve(quantile: float, exponent: float) -> None:
    curve = DeferralCurve(grid(21), tuple(one**exponent for one in grid(21)))

    assert curve.share(curve.confidence(quantile)) == pytest.approx(quantile, abs=1e-6)


def test_plan_of_solution() -> None:
    held = CascadeSolution((1, 2), (8, 4), (1.0, 0.6), (0.6,), admission_rate=0.5)

    plan = diffserve(SETTINGS).plan(context(3), held)

    # All hold the heavy model: the first two keep it.
    assert plan.assignments == (
        WorkerAssignment("w000", "sim:0", "sd15", 1, 4),
        WorkerAssignment("w001", "sim:1", "sd15", 1, 4),
        WorkerAssignment("w002", "sim:2", "turbo", 1, 8),
    )
    assert plan.pools == (
        PoolPlan("turbo", "turbo", ("w002",), every_start("turbo>sd15")),
        PoolPlan("sd15", "sd15", ("w000", "w001")),
    )
    thresholds = tuple(StartThreshold(start, 0.6) for start in ("noise", "latent", "image"))
    stages = (StagePlan("turbo", thresholds), StagePlan("sd15"))
    assert plan.cascades == (CascadePlan("turbo>sd15", stages),)
    assert plan.admission_rate == 0.5


def test_plan_without_heavy_worker_defers_nothing() -> None:
    held = CascadeSolution((3, 0), (8, 4), (1.0, 0.6), (0.6,))

    assert threshold_of(diffserve(SETTINGS).plan(context(3), held), "turbo") == 0.0


def test_first_decision_has_memory() -> None:
    """Demand, time and f(t)."""
    expecting = replace(SETTINGS, expected_per_s=8.0)

    plain = decide(diffserve(expecting), context(16, now_s=7.0))

    assert plain.memory == CascadeMemory(8.0, 7.0, (FollowedCurve(SETTINGS.deferral),))


@pytest.mark.parametrize(("length", "sends_on"), [(0.5, True), (0.7, False)])
def test_pool_without_arrivals_drains_within_slo(length: float, sends_on: bool) -> None:
    """The models take 0.1 s and 1.78 s of 5 s: a wait of 2.5 s fits, one of 3.5 s does not."""
    waiting = ModelDemand("sd15", 0.0, mean_queue_length=length)

    decision = decide(diffserve(SETTINGS), context(16, ModelDemand("turbo", 4.0), waiting))

    assert (threshold_of(decision.plan, "turbo") > 0.0) is sends_on
