"""Lay out a plan from a solution of the joint problem, for a model that needs batches of two sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, RouteShare, StagePlan, StartThreshold, WorkerAssignment
from pentimento.domain.models import Handover
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, ModelDemand, PlanInput
from pentimento.policies.plan.joint.layout import as_planned, lay_out, pool_name
from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    AllocationSolution,
    Component,
    Course,
    PlannedPool,
    PlannedRoute,
    Use,
)
from pentimento.policies.plan.joint.routes import kinds_of
from tests.unit.policies.plan.fleets import profiles, worker

# In batches of four the heavy model is late behind the light one.
KIND = "|sd15|turbo"
BY_HEAVY = PlannedRoute("heavy", "noise", (Use("sd15", 1.0),), 1.0)
CASCADE = PlannedRoute("cascade", "noise", (Use("turbo", 1.0), Use("sd15", 0.5)), 0.8, threshold=0.5)
ONE, FOUR, TURBO = PlannedPool("sd15", KIND, 1), PlannedPool("sd15", KIND, 4), PlannedPool("turbo", KIND, 1)
# The heavy model has 4.2 of work a second: more than four devices carry in batches of one.
RATES = {Course("heavy", (FOUR,)): 3.9, Course("cascade", (TURBO, ONE)): 0.6}


Tables = dict[str, dict[int, float]]
ALONE: Tables = {"sd15": {1: 1.0}, "turbo": {1: 1.0}}


def laid_out(
    held: Sequence[str],
    routes: tuple[PlannedRoute, ...],
    units: Mapping[PlannedPool, int],
    rates: Mapping[Course, float],
    tables: Tables = ALONE,
    slo_s: float = 2.5,
    served_share: float = 1.0,
) -> Plan:
    """Return the plan of workers that hold these models, with seconds by model and batch size."""
    views = tuple(worker(number, model) for number, model in enumerate(held))
    context = PlanInput(0.0, views, profiles=profiles(**tables))
    components = tuple(
        Component(name, {KIND: tuple(BatchCost(*cost) for cost in table.items())}) for name, table in tables.items()
    )
    counts = {(KIND, name): held.count(name) for name in set(held)}
    problem = AllocationProblem({"noise": sum(rates.values())}, {KIND: len(held)}, components, routes, slo_s, counts)
    return lay_out(context, kinds_of(context), problem, AllocationSolution(units, rates, served_share, 1.0))


def decided(heavy_count: int, served_share: float = 1.0, cascade: PlannedRoute = CASCADE) -> Plan:
    """Return a plan: `heavy_count` workers hold the heavy model, and three are needed; one holds the light model."""
    held, tables = [*["sd15"] * heavy_count, "turbo"], {"sd15": {1: 1.0, 4: 2.0}, "turbo": {1: 1.0}}
    units = {ONE: 1, FOUR: 2, TURBO: 1}
    return laid_out(held, (BY_HEAVY, cascade), units, RATES, tables, served_share=served_share)


def sizes(plan: Plan) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for assignment in plan.assignments:
        found.setdefault(assignment.model, []).append(assignment.max_batch_size)
    return {model: sorted(each) for model, each in found.items()}


def test_lay_out_spare_devices_take_smallest_batches() -> None:
    assert sizes(decided(3)) == {"sd15": [1, 4, 4], "turbo": [1]}
    assert sizes(decided(4)) == {"sd15": [1, 1, 4, 4], "turbo": [1]}


def test_lay_out_small_batches_go_to_first_workers() -> None:
    assert [one.max_batch_size for one in decided(4).assignments] == [1, 1, 4, 4, 1]


def test_lay_out_pool_has_all_workers_no_slower() -> None:
    """The pool with most devices has the name of the model."""
    pools = {pool.pool: pool for pool in decided(4).pools}

    assert {name: len(pool.worker_ids) for name, pool in pools.items()} == {
        "sd15": 4,
        "sd15.1": 2,
        "sd15.2": 4,
        "turbo": 1,
        "turbo.1": 1,
        "turbo.2": 1,
    }
    assert {pool.model for name, pool in pools.items() if name.startswith("sd15")} == {"sd15"}


def test_lay_out_rates_become_shares() -> None:
    plan = decided(4)
    routes = {pool.pool: pool.routes for pool in plan.pools if pool.routes}

    assert routes["sd15"][:1] == (RouteShare("noise", 3.9 / 4.5),)
    assert routes["turbo"][:1] == (RouteShare("noise", 0.6 / 4.5, "noise:turbo>sd15.1#0"),)
    light = StagePlan("turbo", (StartThreshold("noise", 0.5),))
    assert plan.cascades == (CascadePlan("noise:turbo>sd15.1#0", (light, StagePlan("sd15.1"))),)


def test_lay_out_unserved_starts_go_to_last_model() -> None:
    routes = {pool.pool: pool.routes for pool in decided(4).pools}

    assert routes["sd15"][1:] == (RouteShare("spare", 1.0),)
    assert routes["turbo"][1:] == (RouteShare("latent", 1.0), RouteShare("image", 1.0))


def test_lay_out_admits_served_share() -> None:
    rates = [decided(3, share).admission_rate for share in (1.0, 0.995, 0.99, 0.989, 0.5)]

    assert rates == [1.0, 1.0, 1.0, 0.989, 0.5]


def test_lay_out_replaced_model_keeps_pool_without_routes() -> None:
    models = ("turbo", "sd15", "old")
    views = tuple(worker(index, model, models) for index, model in enumerate(("sd15", "sd15", "old", "turbo")))
    table = profiles(sd15={1: 1.0, 4: 2.0}, turbo={1: 1.0}, old={1: 1.0})
    context = PlanInput(0.0, views, (ModelDemand("old", 0.0, 3),), table)
    kinds = kinds_of(context)
    (kind,) = kinds
    one, turbo = PlannedPool("sd15", kind, 1), PlannedPool("turbo", kind, 1)
    components = tuple(Component(name, {kind: (BatchCost(1, 1.0),)}) for name in ("sd15", "turbo"))
    held = {(kind, "sd15"): 2, (kind, "old"): 1, (kind, "turbo"): 1}
    problem = AllocationProblem({"noise": 2.0}, {kind: 4}, components, (BY_HEAVY, CASCADE), 2.5, held)
    solution = AllocationSolution({one: 2, turbo: 2}, {Course("heavy", (one,)): 2.0}, 1.0, 1.0)

    pools = lay_out(context, kinds, problem, solution).pools

    assert [pool for pool in pools if pool.model == "old"] == [PoolPlan("old", "old", ("w002",))]


THINNED = replace(BY_HEAVY, name="thinned", uses=(Use("sd15", 0.6),), left_out=0.4)


@pytest.mark.parametrize(
    ("whole", "thinned", "thins"),
    [
        # Three devices in batches of one carry three whole runs a second, and these are 3.2.
        (1.2, 2.0, True),
        # Three fit.
        (1.0, 2.0, False),
        # More than half are whole.
        (2.0, 1.6, False),
        (0.0, 5.0, True),
    ],
)
def test_lay_out_thins_where_whole_runs_do_not_fit(whole: float, thinned: float, thins: bool) -> None:
    rates = {Course("heavy", (ONE,)): whole, Course("thinned", (ONE,)): thinned}

    plan = laid_out(["sd15", "sd15", "sd15", "turbo"], (BY_HEAVY, THINNED), {ONE: 3, TURBO: 1}, rates)

    assert {pool.pool: pool.thins for pool in plan.pools}["sd15"] is thins
    assert not any(pool.thins for pool in plan.pools if pool.model == "turbo")


def test_lay_out_equal_ways_add_up() -> None:
    """Four to one: from pools that the plan has as one."""
    rates = {Course("heavy", (ONE,)): 2.4, Course("heavy", (FOUR,)): 0.8, Course("cascade", (TURBO, ONE)): 0.8}

    plan = laid_out(["sd15", "sd15", "turbo"], (BY_HEAVY, CASCADE), {ONE: 2, TURBO: 1}, rates)

    shares = {pool.pool: pool.routes[0].share for pool in plan.pools if pool.routes}
    assert shares["sd15"] == pytest.approx(0.8)
    assert shares["turbo"] == pytest.approx(0.2)


def test_as_planned_running_load_counts_as_done() -> None:
    views = (worker(0, "sd15"), worker(1, "sd15"), worker(2, "turbo"))
    last = Decision(
        Plan(UNNUMBERED, (WorkerAssignment("w001", "sim:1", "turbo", 1), WorkerAssignment("gone", "", "sd15", 1)))
    )

    found = as_planned(PlanInput(0.0, views, last=last))

    assert [view.replica.resident_models for view in found.replicas] == [("sd15",), ("turbo",), ("turbo",)]
    assert found.replicas[0] is views[0]


def test_pool_name_first_is_model() -> None:
    assert [pool_name("sd15", number) for number in range(3)] == ["sd15", "sd15.1", "sd15.2"]


def test_lay_out_more_sizes_than_pools_share_last() -> None:
    """The two of four sizes with fewest devices share a pool."""
    of = {size: PlannedPool("sd15", KIND, size) for size in (1, 2, 4, 8)}
    # In batches of eight no request behind another is in time: one size is not enough.
    tight = PlannedRoute("tight", "noise", (Use("sd15", 1.0, 1.5),), 1.0)
    rates = {Course("tight", (of[size],)): 0.9 for size in (1, 2)} | {Course("heavy", (of[8],)): 16.0}
    tables = {"sd15": {size: 1.0 + size / 10 for size in of}}

    plan = laid_out(
        ["sd15"] * 10, (tight, BY_HEAVY), {of[1]: 1, of[2]: 4, of[4]: 2, of[8]: 3}, rates, tables, slo_s=2.0
    )

    members = {pool.pool: len(pool.worker_ids) for pool in plan.pools}
    assert sizes(plan) == {"sd15": [1, 2, 2, 2, 2, 4, 4, 8, 8, 8]}
    # Pools of batches of two, of eight, and of one and four: each has the workers no slower than its slowest.
    assert members == {"sd15": 5, "sd15.1": 10, "sd15.2": 7}


def test_lay_out_quickest_model_stands_in() -> None:
    by_light = PlannedRoute("light", "noise", (Use("turbo", 1.0),), 0.5)
    rates = {Course("heavy", (ONE,)): 1.5, Course("light", (TURBO,)): 0.5}
    tables = {"sd15": {1: 1.0}, "turbo": {1: 0.5}}

    plan = laid_out(["sd15", "sd15", "turbo"], (BY_HEAVY, by_light), {ONE: 2, TURBO: 1}, rates, tables)

    assert plan.cascades == (CascadePlan("noise:sd15~turbo", (StagePlan("sd15"), StagePlan("turbo"))),)
    found = {pool.pool: pool.routes for pool in plan.pools if pool.routes}
    assert found["sd15"][0] == RouteShare("noise", 0.75, "noise:sd15~turbo")
    assert found["turbo"][0] == RouteShare("noise", 0.25)


def test_lay_out_scored_stage_has_registered_handover() -> None:
    handover = Handover("turbo>sd15", "sha256:d", (0.0, 1.0), (0.0, 1.0), reuse_share=0.4)
    registered = replace(CASCADE, handover=handover)

    (cascade,) = (one for one in decided(4, cascade=registered).cascades if one.stages[0].thresholds)

    first = cascade.stages[0]
    assert (first.discriminator, first.discriminator_digest, first.reuse_share) == ("turbo>sd15", "sha256:d", 0.4)


def test_lay_out_cascades_of_same_pools_are_numbered() -> None:
    lower = replace(CASCADE, name="lower", threshold=0.25)
    rates = {Course("cascade", (TURBO, ONE)): 1.0, Course("lower", (TURBO, ONE)): 0.5}

    plan = laid_out(["sd15", "sd15", "turbo"], (BY_HEAVY, CASCADE, lower), {ONE: 2, TURBO: 1}, rates)

    thresholds = {one.cascade: one.stages[0].thresholds[0].confidence for one in plan.cascades}
    assert thresholds == {"noise:turbo>sd15#0": 0.25, "noise:turbo>sd15#1": 0.5}
    (turbo,) = (pool for pool in plan.pools if pool.pool == "turbo")
    assert {route.cascade: route.share for route in turbo.routes if route.cascade} == {
        "noise:turbo>sd15#0": pytest.approx(1 / 3),
        "noise:turbo>sd15#1": pytest.approx(2 / 3),
    }
