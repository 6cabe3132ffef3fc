"""Impossible plans are rejected by field."""

import math
from dataclasses import replace

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import (
    CachePlan,
    CascadePlan,
    ComponentPlacement,
    Plan,
    PoolPlan,
    RegisteredDigest,
    ReplicaKind,
    RouteShare,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.domain.generation import PlanVersion
from pentimento.policies.eviction_rules import EVICTION_NAMES
from pentimento.policies.plan.entry import STARTS
from pentimento.policies.plan_checks import check_plan

LIGHT = PoolPlan("light", "a", ("w1",), (RouteShare("noise", 1.0, "c"), RouteShare("spare", 1.0)))
HEAVY = PoolPlan("heavy", "b", ("w2",))
FIRST = StagePlan("light", (StartThreshold("noise", 0.5), StartThreshold("image", 1.0)))
LAST = StagePlan("heavy")
GOOD = Plan(
    PlanVersion(1, 1),
    (WorkerAssignment("w1", "unix:/w1", "a", 1),),
    (LIGHT, HEAVY),
    cascades=(CascadePlan("c", (FIRST, LAST)),),
    cache=CachePlan(("noise",), False, 0.9, -2, "lcbfu"),
    components=(ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("cn",)),),
)


def routed(route: RouteShare) -> dict[str, object]:
    return {"pools": (replace(LIGHT, routes=(route,)), HEAVY)}


def staged(*stages: StagePlan) -> dict[str, object]:
    return {"cascades": (CascadePlan("c", stages),)}


def test_check_plan_takes_sound_plan() -> None:
    check_plan(GOOD)
    check_plan(Plan(PlanVersion(1, 1)))


WRONG: list[tuple[dict[str, object], str]] = [
    ({"admission_rate": math.nan}, "admission_rate"),
    ({"assignments": GOOD.assignments * 2}, "assignments"),
    ({"assignments": (replace(GOOD.assignments[0], max_batch_size=-1),)}, "assignments[0].max_batch_size"),
    ({"pools": (LIGHT, replace(HEAVY, pool="light"))}, "pools"),
    ({"pools": (LIGHT, HEAVY, replace(HEAVY, pool=""))}, "pools"),
    (routed(RouteShare("hit", 1.0)), "pools[0].routes[0].route"),
    (routed(RouteShare("noise", 1.5)), "pools[0].routes[0].share"),
    (routed(RouteShare("noise", 1.0, "other")), "pools[0].routes[0].cascade"),
    ({"pools": (LIGHT, replace(HEAVY, routes=(RouteShare("noise", 1.0, "c"),)))}, "pools[1].routes[0].cascade"),
    ({"cascades": GOOD.cascades * 2}, "cascades"),
    (staged(FIRST), "cascades[0].stages"),
    (staged(FIRST, LAST, replace(LAST, pool="light")), "cascades[0].stages"),
    (staged(FIRST, replace(LAST, pool="other")), "cascades[0].stages[1].pool"),
    (staged(FIRST, replace(LAST, thresholds=FIRST.thresholds)), "cascades[0].stages[1].thresholds"),
    (staged(replace(FIRST, thresholds=FIRST.thresholds * 2), LAST), "cascades[0].stages[0].thresholds"),
    (
        staged(replace(FIRST, thresholds=(StartThreshold("spare", 0.5),)), LAST),
        "cascades[0].stages[0].thresholds[0].start",
    ),
    (
        staged(replace(FIRST, thresholds=(StartThreshold("noise", -0.1),)), LAST),
        "cascades[0].stages[0].thresholds[0].confidence",
    ),
    ({"cache": CachePlan(("spare",))}, "cache.admits"),
    ({"cache": CachePlan(alpha=math.inf)}, "cache.alpha"),
    ({"cache": CachePlan(bias=17)}, "cache.bias"),
    ({"cache": CachePlan(eviction="random")}, "cache.eviction"),
    (staged(replace(FIRST, reuse_share=1.0), LAST), "cascades[0].stages[0].reuse_share"),
    (staged(FIRST, replace(LAST, reuse_share=0.1)), "cascades[0].stages[1].reuse_share"),
    ({"components": (ComponentPlacement(ReplicaKind.UNET_WORKER, "a", ()),)}, "components[0]"),
    ({"components": (ComponentPlacement(ReplicaKind.CONTROLNET, "", ()),)}, "components[0]"),
    ({"registered": (RegisteredDigest("a", "sha256:1"), RegisteredDigest("a", "sha256:2"))}, "registered"),
]


def test_check_plan_names_wrong_field() -> None:
    for change, field in WRONG:
        with pytest.raises(InvalidArgument) as refused:
            check_plan(replace(GOOD, **change))  # type: ignore[arg-type]

        assert [violation.field for violation in refused.value.violations] == [field]


LIMITS: list[dict[str, object]] = [
    {"admission_rate": 0.0},
    {"admission_rate": 1.0},
    {"assignments": (replace(GOOD.assignments[0], max_batch_size=0),)},
    *({"pools": (replace(LIGHT, routes=(RouteShare(route, 0.0),)), HEAVY), "cascades": ()} for route in STARTS),
    staged(replace(FIRST, reuse_share=0.999), LAST),
    staged(replace(FIRST, thresholds=(StartThreshold("latent", 0.0),)), LAST),
    {"cache": CachePlan(("noise", "latent", "image"), alpha=1.0, bias=16)},
    {"cache": CachePlan(alpha=0.0, bias=-16)},
    {"cache": CachePlan(alpha=None, eviction="")},
    *({"cache": CachePlan(eviction=name)} for name in EVICTION_NAMES),
]


def test_check_plan_takes_limits() -> None:
    for change in LIMITS:
        check_plan(replace(GOOD, **change))  # type: ignore[arg-type]


MESSAGES: list[tuple[dict[str, object], str]] = [
    ({"cache": CachePlan(bias=-17)}, "cache.bias: must be between -16 and 16, got -17"),
    ({"admission_rate": -0.5}, "admission_rate: must be between 0 and 1, got -0.5"),
    (
        {"assignments": (GOOD.assignments[0], replace(GOOD.assignments[0], worker_id="w2", max_batch_size=-2))},
        "assignments[1].max_batch_size: must be at least 0, got -2",
    ),
    (staged(FIRST), "cascades[0].stages: must be at least 2, got 1"),
    (
        staged(FIRST, StagePlan("middle"), replace(LAST, reuse_share=0.5)),
        "cascades[0].stages[2].reuse_share: must be 0: no stage starts from the last one's image",
    ),
    (
        staged(FIRST, StagePlan("middle"), replace(LAST, thresholds=FIRST.thresholds)),
        "cascades[0].stages[2].thresholds: must be empty: no image of the last stage is scored",
    ),
    (
        {"pools": (replace(LIGHT, routes=(*LIGHT.routes, RouteShare("no", 1.0))), HEAVY)},
        "pools[0].routes[2].route: must be noise, latent, image or spare, got 'no'",
    ),
    (
        {"pools": (LIGHT, replace(HEAVY, routes=(RouteShare("noise", 1.0, "c"),)))},
        "pools[1].routes[0].cascade: must begin with 'heavy', begins with 'light'",
    ),
]


def test_check_plan_names_place_limit_and_value() -> None:
    for change, message in MESSAGES:
        plan = replace(GOOD, **change)  # type: ignore[arg-type]
        if plan.cascades != GOOD.cascades:
            plan = replace(plan, pools=(*plan.pools, PoolPlan("middle", "c", ("w3",))))

        with pytest.raises(InvalidArgument) as refused:
            check_plan(plan)

        assert refused.value.message == message
