"""Read the stages of a request from a plan."""

from dataclasses import replace

import pytest

from pentimento.domain.fleet import (
    CascadePlan,
    Plan,
    PoolPlan,
    RegisteredDigest,
    RouteShare,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.domain.generation import PlanVersion
from pentimento.domain.tenants import TenantQuota
from pentimento.policies.plan.entry import PlanIndex, Stage, allowed_stages, every_start, request_stages, stages_from

SCORED = (StartThreshold("noise", 0.4), StartThreshold("image", 0.6))
POOLS = (
    PoolPlan("small", "a", ("w0",), (RouteShare("noise", 0.75, "two"), RouteShare("noise", 0.25, "three"))),
    PoolPlan("large", "c", ("w2",)),
    PoolPlan("medium", "b", ("w1",), (RouteShare("image", 1.0, "refined"),)),
)
CASCADES = (
    CascadePlan("two", (StagePlan("small", SCORED), StagePlan("large"))),
    CascadePlan("three", (StagePlan("small", SCORED, "a>b"), StagePlan("medium", SCORED), StagePlan("large"))),
    CascadePlan("refined", (StagePlan("medium", SCORED), StagePlan("large"))),
)
PLAN = Plan(PlanVersion(1, 1), pools=POOLS, cascades=CASCADES)
INDEX = PlanIndex(PLAN)


def names(stages: tuple[Stage, ...]) -> list[str]:
    return [stage.pool for stage in stages]


@pytest.mark.parametrize(("draw", "stages"), [(0.7, ["small", "large"]), (0.8, ["small", "medium", "large"])])
def test_stages_follow_cascade_in_any_order_of_pools(draw: float, stages: list[str]) -> None:
    assert names(request_stages(INDEX, "", draw)) == stages


def test_the_largest_draw_goes_through_the_last_cascade() -> None:
    assert names(request_stages(INDEX, "", 1.0)) == ["small", "medium", "large"]


def test_a_stage_has_thresholds_by_start_and_its_discriminator() -> None:
    first, second, _ = request_stages(INDEX, "", 0.9)

    assert (first.cascade, first.discriminator, second.discriminator) == ("three", "a>b", "")
    assert [first.threshold(start) for start in ("noise", "image", "latent")] == [0.4, 0.6, None]


def test_a_request_that_names_a_model_goes_to_its_pool_alone() -> None:
    assert request_stages(INDEX, "c", 0.0) == (Stage("large", "c"),)
    assert request_stages(INDEX, "other", 0.0, ("x", "y")) == (Stage("other", "other"),)


def test_pools_of_one_model_take_its_requests_by_their_workers() -> None:
    pools = (PoolPlan("quick", "c", ("w1",)), PoolPlan("full", "c", ("w2", "w3", "w4")))
    plan = Plan(PlanVersion(1, 1), pools=pools)

    drawn = [request_stages(PlanIndex(plan), "c", draw / 100)[0].pool for draw in range(100)]

    assert (drawn.count("quick"), drawn.count("full")) == (25, 75)


def test_tenant_is_drawn_to_allowed_pools_of_its_model_only() -> None:
    """The draw is weighted by the workers of allowed pools; without one it is over all pools, and admission rejects
    it."""
    pools = (PoolPlan("a", "c", ("w1",)), PoolPlan("b", "c", ("w2", "w3", "w4")), PoolPlan("d", "c", ("w5",)))
    plan = Plan(PlanVersion(1, 1), pools=pools)

    def drawn(*allowed: str) -> list[str]:
        quota = TenantQuota(pools=allowed)
        return [request_stages(PlanIndex(plan), "c", draw / 100, quota=quota)[0].pool for draw in range(100)]

    assert drawn("a") == ["a"] * 100
    assert [drawn("a", "b").count(pool) for pool in "abd"] == [25, 75, 0]
    assert drawn("elsewhere") == drawn()


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.6, 0.99])
def test_tenant_is_drawn_to_ways_with_an_allowed_stage(draw: float) -> None:
    """Two of three ways from noise end in large; the second and the third have medium."""
    ways = (RouteShare("noise", 0.5, "two"), RouteShare("noise", 0.2, "three"))
    pools = (replace(POOLS[0], routes=ways), POOLS[1], replace(POOLS[2], routes=(RouteShare("noise", 0.3),)))
    plan = replace(PLAN, pools=pools)

    def drawn(*allowed: str) -> list[str]:
        quota = TenantQuota(pools=allowed)
        return names(allowed_stages(request_stages(PlanIndex(plan), "", draw, quota=quota), quota))

    assert drawn("medium") == ["medium"]
    assert drawn("large") == ["large"]
    assert drawn("elsewhere") == names(request_stages(PlanIndex(plan), "", draw))


def test_hit_uses_cascade_allowed_to_its_tenant() -> None:
    """Half of the images are refined by medium alone, which it may not use, and half by large and then small."""
    back = CascadePlan("back", (StagePlan("large", SCORED), StagePlan("small")))
    large = replace(POOLS[1], routes=(RouteShare("image", 0.5, "back"),))
    medium = replace(POOLS[2], routes=(RouteShare("image", 0.5),))
    plan = replace(PLAN, pools=(POOLS[0], medium, large), cascades=(*CASCADES, back))
    quota, came_with = TenantQuota(pools=("large",)), request_stages(PlanIndex(plan), "", 0.5)

    drawn = [stages_from(PlanIndex(plan), came_with, "large", "c", "image", draw / 10, quota) for draw in range(10)]

    assert [names(stages) for stages in drawn] == [["large", "small"]] * 10


def test_without_a_plan_that_routes_the_settings_cascade_is_taken() -> None:
    settings = ("small", "large")
    resident = replace(PLAN, pools=(PoolPlan("a", "a", ("w0",)),), cascades=())

    for plan in (None, resident):
        assert request_stages(PlanIndex(plan), "", 0.0, settings) == (Stage("small", "small"), Stage("large", "large"))
    assert request_stages(PlanIndex(), "", 0.0) == ()


def test_a_hit_takes_the_stages_that_the_plan_has_for_its_start() -> None:
    came_with = request_stages(INDEX, "", 0.5)

    assert names(stages_from(INDEX, came_with, "medium", "b", "image", 0.5)) == ["medium", "large"]


def test_start_without_route_keeps_its_stages() -> None:
    came_with = request_stages(INDEX, "", 0.5)

    assert stages_from(INDEX, came_with, "small", "a", "latent", 0.5) == came_with


def test_a_pool_s_route_without_a_cascade_ends_there() -> None:
    plan = Plan(PlanVersion(1, 1), pools=(PoolPlan("large", "c", ("w2",), (RouteShare("noise", 1.0),)), *POOLS))

    assert request_stages(PlanIndex(plan), "", 0.0) == (Stage("large", "c", planned=True),)


def test_a_stage_has_all_that_its_cascade_says_of_it() -> None:
    last = StagePlan("large", reuse_share=0.4)
    plan = replace(PLAN, cascades=(CascadePlan("two", (StagePlan("small", SCORED), last)),))

    assert request_stages(PlanIndex(plan), "", 0.0) == (
        Stage("small", "a", "two", "", SCORED, planned=True),
        Stage("large", "c", "two", planned=True, reuse_share=0.4),
    )


def test_pool_that_resumes_latent_is_last_stage() -> None:
    came_with = request_stages(INDEX, "", 0.5)

    assert stages_from(INDEX, came_with, "large", "c", "latent", 0.5) == (Stage("large", "c"),)


def test_request_that_named_model_is_not_deferred() -> None:
    plan = replace(PLAN, pools=(replace(POOLS[0], routes=every_start("two")), *POOLS[1:]))
    named = request_stages(PlanIndex(plan), "a", 0.5)

    assert stages_from(PlanIndex(plan), named, "small", "a", "image", 0.5) == named == (Stage("small", "a"),)


LOOKED_UP = Plan(
    PlanVersion(3, 4),
    assignments=(WorkerAssignment("w0", "unix:/w0", "a", 1),),
    pools=(
        PoolPlan("light", "a", ("w0",), (RouteShare("noise", 1.0, "two"),), thins=True),
        PoolPlan("heavy", "c", (), (RouteShare("noise", 0.0), RouteShare("image", 1.0))),
        PoolPlan("lost", "c", (), (RouteShare("noise", 1.0),)),
        PoolPlan("hits", "c", ("w9",), (RouteShare("image", 1.0),)),
    ),
    cascades=(CascadePlan("two", (StagePlan("light", SCORED), StagePlan("heavy"))),),
    registered=(RegisteredDigest("a", "sha256:a"),),
)


@pytest.mark.parametrize(
    ("table", "of_plan", "of_none"),
    [
        ("version", PlanVersion(3, 4), PlanVersion()),
        ("pools", LOOKED_UP.pools, ()),
        ("cascades", LOOKED_UP.cascades, ()),
        ("routes_requests", True, False),
        ("models", {"light": "a", "heavy": "c", "lost": "c", "hits": "c"}, {}),
        ("assigned", {"w0"}, frozenset()),
        ("staffed", {"light", "hits"}, frozenset()),
        ("unstaffed", {"heavy", "lost"}, frozenset()),
        ("entered", {"light"}, frozenset()),
        ("thinned", {"light"}, frozenset()),
        ("registered", {"a": "sha256:a"}, {}),
        ("thresholds", {"two": {("light", "noise"): 0.4, ("light", "image"): 0.6}}, {}),
    ],
)
def test_plan_index_has_tables_of_the_plan(table: str, of_plan: object, of_none: object) -> None:
    assert getattr(PlanIndex(LOOKED_UP), table) == of_plan
    assert getattr(PlanIndex(), table) == of_none


@pytest.mark.parametrize(
    ("worker", "model", "pools"),
    [
        pytest.param("w9", "c", ("hits",), id="named"),
        pytest.param("w0", "c", ("c",), id="another-model"),
        pytest.param("w1", "c", ("c",), id="unnamed"),
    ],
)
def test_plan_index_pools_of_worker(worker: str, model: str, pools: tuple[str, ...]) -> None:
    assert PlanIndex(LOOKED_UP).pools_of(worker, model) == pools
    assert PlanIndex().pools_of(worker, model) == (model,)
