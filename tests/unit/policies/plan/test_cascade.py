"""Plan a registered cascade of three models."""

import math
from dataclasses import replace

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import MeasuredDeferral, Replica, ReplicaKind, StagePlan
from pentimento.domain.models import CascadeVariant, Handover
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.cascade import CascadeMemory, CascadePolicy, diffserve_cascade, with_measured
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput, ReplicaView
from pentimento.policies.plan.registry import SERVING_POLICIES
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, counts, decide, profiles, repeat, threshold_of, worker

MIDDLE = {size: 4 * seconds for size, seconds in TURBO.items()}
CURVE = DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.3, 1.0))
THREE = CascadeVariant(
    ("turbo", "middle", "sd15"),
    tuple(
        Handover(name, "sha256:" + "d" * 64, CURVE.thresholds, CURVE.shares) for name in ("turbo>middle", "middle>sd15")
    ),
)
NOTHING = Decision()
# Fifty light images that the discriminator rejects.
LOW = (50, *(0,) * 19)
SETTINGS = ServingSettings("sd15", light="turbo", slo_s=8.0, batch_sizes=(1, 2, 4))


def fleet(devices: int, rate: float, last: Decision = NOTHING) -> PlanInput:
    models = ("turbo", "middle", "sd15")
    workers = tuple(worker(index, "sd15", models) for index in range(devices))
    demand = (ModelDemand("turbo", rate),)
    return PlanInput(0.0, workers, demand, profiles(turbo=TURBO, middle=MIDDLE, sd15=SD15), last)


def test_plan_has_three_stages() -> None:
    decision = decide(CascadePolicy(SETTINGS, THREE), fleet(12, 6.0))

    (cascade,) = decision.plan.cascades
    assert cascade.cascade == "turbo>middle>sd15"
    assert [(stage.pool, stage.discriminator, stage.discriminator_digest) for stage in cascade.stages] == [
        ("turbo", "turbo>middle", "sha256:" + "d" * 64),
        ("middle", "middle>sd15", "sha256:" + "d" * 64),
        ("sd15", "", ""),
    ]
    assert {entry.start for entry in cascade.stages[0].thresholds} == {"noise", "latent", "image"}
    assert set(counts(decision)) == {"turbo", "middle", "sd15"}
    assert {route.cascade for route in decision.plan.pools[0].routes} == {"turbo>middle>sd15"}


@pytest.mark.parametrize(
    ("pair", "settings", "curve"),
    [
        ("turbo>sd15", SETTINGS, CURVE),
        ("turbo>middle", SETTINGS, DeferralCurve()),
        ("turbo>sd15", replace(SETTINGS, deferral=DeferralCurve((0.0, 1.0), (0.2, 1.0))), None),
        ("turbo>sd15", SETTINGS.handing_over(Handover("turbo>sd15", "d", (0.0, 1.0), (0.1, 1.0))), None),
    ],
    ids=["measured", "of another pair", "stated by the operator", "registered"],
)
def test_unstated_curve_is_the_discriminators(
    pair: str, settings: ServingSettings, curve: DeferralCurve | None
) -> None:
    measured = MeasuredDeferral(pair, "sha256:d", CURVE.thresholds, CURVE.shares)
    replica = Replica("d", ReplicaKind.DISCRIMINATOR, "sim:d", 1, deferrals=(measured,))
    given = PlanInput(0.0, (ReplicaView(replica),))

    (handover,) = with_measured(diffserve_cascade(settings), given).handovers

    found = DeferralCurve(handover.thresholds, handover.shares)
    assert found == (curve or settings.deferral)
    assert settings.measured_by([replica]).deferral == found


@pytest.mark.parametrize("policy", ["diffserve", "joint"])
def test_cascade_without_information_is_not_planned(policy: str) -> None:
    lacking = "its AUROC for 'as good' is 0.52 [0.46, 0.58], and 0.5 is chance"
    measured = MeasuredDeferral("turbo>sd15", "sha256:d", CURVE.thresholds, CURVE.shares, uninformative=lacking)
    replica = Replica("d", ReplicaKind.DISCRIMINATOR, "sim:d", 1, deferrals=(measured,))
    given = fleet(4, 1.0)
    given = replace(given, replicas=(*given.replicas, ReplicaView(replica)))

    with pytest.raises(FailedPrecondition, match=r"of turbo>sd15 carries no information: .* 0\.52") as caught:
        SERVING_POLICIES[policy](SETTINGS).allocator(given)

    assert caught.value.reason == Reason.DISCRIMINATOR_UNINFORMATIVE


def test_plan_names_reuse_share_of_stage() -> None:
    first, second = THREE.handovers
    reusing = CascadeVariant(THREE.models, (first, replace(second, reuse_share=0.4)))

    (cascade,) = decide(CascadePolicy(SETTINGS, reusing), fleet(12, 6.0)).plan.cascades

    assert [stage.reuse_share for stage in cascade.stages] == [0.0, 0.4, 0.0]
    full, spared = (CascadePolicy(SETTINGS, one).stage(fleet(12, 6.0), 2) for one in (THREE, reusing))
    assert [cost.latency_s for cost in spared] == pytest.approx([0.6 * cost.latency_s for cost in full])


def test_plan_under_load_defers_fewer() -> None:
    allocator = CascadePolicy(SETTINGS, THREE)

    alone = decide(allocator, fleet(1, 6.0))

    assert alone.plan.cascades == ()
    assert counts(alone) == {"turbo": 1}
    assert all(not route.cascade for route in alone.plan.pools[0].routes)


def test_demand_is_averaged_over_rounds() -> None:
    allocator = CascadePolicy(SETTINGS, THREE)
    first = decide(allocator, fleet(12, 6.0))

    again = decide(allocator, fleet(12, 30.0, first))

    assert first.memory == again.memory == CascadeMemory(6.0, 0.0, (FollowedCurve(CURVE),) * 2)


@pytest.mark.parametrize("number", [0, 1])
def test_curve_of_each_stage_follows_its_scores(number: int) -> None:
    """Fifty images, all surely below the mark, count as much as the profile."""
    demand = tuple(ModelDemand(name, 6.0) for name in THREE.models)
    demand = (*demand[:number], replace(demand[number], confidences=LOW), *demand[number + 1 :])
    seen = replace(fleet(12, 6.0), demand=demand)

    decision = decide(CascadePolicy(SETTINGS, THREE), seen)

    curves = decision.memory.curves
    assert curves[number].followed.share(0.5) == pytest.approx((0.3 + 1.0) / 2)
    assert curves[1 - number].followed == CURVE
    assert [one.cascade for one in decision.deferrals] == ["turbo>middle", "middle>sd15"]
    assert decision.deferrals[number].shares[9] == pytest.approx(0.65)
    assert decision.deferrals[number].measured_shares[9] == pytest.approx(0.3)


def test_threshold_falls_where_more_are_deferred() -> None:
    allocator = CascadePolicy(SETTINGS, THREE)
    calm = threshold_of(decide(allocator, fleet(12, 20.0)).plan, "middle")
    seen = ModelDemand("middle", 20.0, confidences=LOW)
    asked = fleet(12, 20.0)

    last, _ = repeat(allocator, replace(asked, demand=(*asked.demand, seen)), times=30, every_s=5.0)

    assert threshold_of(last.plan, "middle") < 0.8 * calm


def test_slowest_discriminator_counts() -> None:
    """Two scorings of four seconds use up the SLO of eight."""
    asked = fleet(12, 6.0)
    slow = replace(asked, profiles=(*asked.profiles, *profiles(**{"turbo>middle": {1: 0.01}, "middle>sd15": {1: 4.0}})))

    assert threshold_of(decide(CascadePolicy(SETTINGS, THREE), asked).plan, "turbo") > 0.0
    assert threshold_of(decide(CascadePolicy(SETTINGS, THREE), slow).plan, "turbo") == 0.0


def test_last_stage_scores_nothing() -> None:
    decision = decide(CascadePolicy(SETTINGS, THREE), fleet(12, 6.0))

    assert decision.plan.cascades[0].stages[-1] == StagePlan("sd15")


def test_first_stage_reuses_no_image() -> None:
    first, second = THREE.handovers
    reusing = CascadeVariant(THREE.models, (first, replace(second, reuse_share=0.4)))

    full, same = (CascadePolicy(SETTINGS, one).stage(fleet(12, 6.0), 0) for one in (THREE, reusing))

    assert same == full


@pytest.mark.parametrize(
    ("demand", "slo_s", "wait_s"),
    [
        (ModelDemand("turbo", 2.0, 9, mean_queue_length=4.0), 8.0, 2.0),
        (ModelDemand("turbo", 2.0, 9), 8.0, 4.5),
        (ModelDemand("turbo", 0.0, 3), 8.0, 24.0),
        (ModelDemand("turbo", 0.0, 3), math.inf, 3000.0),
    ],
)
def test_stage_wait_follows_littles_law(demand: ModelDemand, slo_s: float, wait_s: float) -> None:
    allocator = CascadePolicy(replace(SETTINGS, slo_s=slo_s), THREE)

    costs = allocator.stage(replace(fleet(12, 6.0), demand=(demand,)), 0)

    assert [cost.wait_s for cost in costs] == pytest.approx([wait_s] * 3)


def lacking(*lacked: str) -> PlanInput:
    """Return twelve workers that can hold only the other models, with costs for those models alone."""
    there = tuple(model for model in THREE.models if model not in lacked)
    views = tuple(worker(index, there[0], there) for index in range(12))
    tables = {"turbo": TURBO, "middle": MIDDLE, "sd15": SD15}
    known = profiles(**{model: tables[model] for model in there})
    return PlanInput(0.0, views, (ModelDemand(there[0], 6.0),), known)


@pytest.mark.parametrize(
    ("lacked", "stages"),
    [(("sd15",), ["turbo", "middle"]), (("turbo",), ["middle", "sd15"]), (("middle",), []), (("turbo", "sd15"), [])],
)
def test_missing_stage_leaves_adjacent_ones(lacked: tuple[str, ...], stages) -> None:
    decision = decide(CascadePolicy(SETTINGS, THREE), lacking(*lacked))

    first = next(model for model in THREE.models if model not in lacked)
    assert [[stage.pool for stage in one.stages] for one in decision.plan.cascades] == ([stages] if stages else [])
    assert [pool.pool for pool in decision.plan.pools if pool.routes] == [first]
    assert set(counts(decision)) == set(stages or [first]) and sum(counts(decision).values()) == 12
    assert {pool.pool for pool in decision.plan.pools} == set(THREE.models)


def test_memory_of_missing_stage_is_kept() -> None:
    curves = (FollowedCurve(CURVE), FollowedCurve(CURVE).after(LOW))
    before = Decision(memory=CascadeMemory(6.0, 0.0, curves))

    decision = decide(CascadePolicy(SETTINGS, THREE), replace(lacking("sd15"), now_s=5.0, last=before))

    assert (decision.memory.at_s, decision.memory.curves) == (5.0, curves)
    assert [one.cascade for one in decision.deferrals] == ["turbo>middle"]


def test_curve_registered_again_is_planned_as_measured() -> None:
    other, second = (FollowedCurve(DeferralCurve((0.0, 1.0), (0.1, 1.0))).after(LOW), FollowedCurve(CURVE).after(LOW))
    seen = replace(fleet(12, 6.0), demand=(ModelDemand("turbo", 6.0, confidences=LOW),))

    decision = decide(
        CascadePolicy(SETTINGS, THREE), replace(seen, last=Decision(memory=CascadeMemory(6.0, 0.0, (other, second))))
    )

    assert decision.memory.curves == (FollowedCurve(CURVE), second)
