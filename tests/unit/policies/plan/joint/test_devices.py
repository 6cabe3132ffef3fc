"""Share out devices and settle batch sizes on fleets small enough to do by hand."""

from dataclasses import replace

import pytest

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.devices import keeps_slo, settle_sizes, share_out, work_of
from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    AllocationSolution,
    Component,
    Course,
    PlannedPool,
    PlannedRoute,
    Use,
)

# One a second in batches of one, two a second in batches of four.
COSTS = {"gpu": (BatchCost(1, 1.0), BatchCost(4, 2.0))}
HEAVY, LIGHT = Component("heavy", COSTS), Component("light", COSTS)
BY_HEAVY = PlannedRoute("heavy", "noise", (Use("heavy", 1.0),), 1.0)
BY_LIGHT = PlannedRoute("light", "noise", (Use("light", 1.0),), 0.5)
CASCADE = PlannedRoute("cascade", "noise", (Use("light", 1.0), Use("heavy", 0.5)), 0.8)
ROUTES = (BY_HEAVY, BY_LIGHT, CASCADE)


def pool(component: str, batch_size: int = 1, kind: str = "gpu") -> PlannedPool:
    return PlannedPool(component, kind, batch_size)


def problem(devices: int, components: tuple[Component, ...] = (HEAVY, LIGHT), **held: int) -> AllocationProblem:
    return AllocationProblem(
        {"noise": 1.0},
        {"gpu": devices},
        components,
        ROUTES,
        slo_s=4.0,
        held={("gpu", name): count for name, count in held.items()},
    )


def solution(units: dict[PlannedPool, int], **rates: float) -> AllocationSolution:
    """Return every route through the given pools of its components."""
    paths = {route.name: route.models for route in ROUTES}
    own = {unit.component: unit for unit in units}
    courses = {Course(name, tuple(own[model] for model in paths[name])): rate for name, rate in rates.items()}
    return AllocationSolution(units, courses, 1.0, 1.0)


def test_work_of_sums_all_routes_of_component() -> None:
    found = solution({pool("heavy"): 2, pool("light"): 2}, heavy=0.5, light=0.25, cascade=1.0)

    assert work_of(problem(4), found, "heavy") == pytest.approx(0.5 + 0.5)
    assert work_of(problem(4), found, "light") == pytest.approx(0.25 + 1.0)
    assert work_of(problem(4), found, "heavy", "gpu") == pytest.approx(1.0)
    assert work_of(problem(4), found, "heavy", "small") == 0.0


HEAVY_1, HEAVY_2, LIGHT_1, LIGHT_2, LIGHT_3 = (
    {pool(model): count} for model, count in (("heavy", 1), ("heavy", 2), ("light", 1), ("light", 2), ("light", 3))
)
BUSY_HEAVY = {rate: solution(HEAVY_2 | LIGHT_1, heavy=rate, light=0.2) for rate in (1.58, 1.62, 1.95)}
UNNEEDED = solution(HEAVY_1 | LIGHT_3, heavy=0.95, light=0.3)
SHARED = {
    "spare devices keep models": (problem(5, heavy=3, light=2), solution(HEAVY_1, heavy=0.1), (3, 2)),
    "an empty device goes to the busiest model": (
        problem(4, heavy=1, light=2),
        solution(HEAVY_1 | LIGHT_2, heavy=0.5, light=1.8),
        (1, 3),
    ),
    # Two devices are busy with the heavy model; three hold the light one and are nearly idle.
    "a model that is 79 % busy gets none": (problem(5, heavy=2, light=3), BUSY_HEAVY[1.58], (2, 3)),
    "a model that is 81 % busy gets one": (problem(5, heavy=2, light=3), BUSY_HEAVY[1.62], (3, 2)),
    "a model that is 98 % busy gets one": (problem(5, heavy=2, light=3), BUSY_HEAVY[1.95], (3, 2)),
    "a giver that would be 55 % busy gives": (
        problem(4, heavy=1, light=3),
        solution(HEAVY_1 | LIGHT_2, heavy=0.9, light=1.1),
        (2, 2),
    ),
    "a giver that would be 65 % busy keeps": (
        problem(4, heavy=1, light=3),
        solution(HEAVY_1 | LIGHT_2, heavy=0.9, light=1.3),
        (1, 3),
    ),
    # The two for the little that the light model does are loading, and carry nothing yet.
    "loading devices are needed": (problem(3, heavy=1), solution(HEAVY_1 | LIGHT_2, heavy=0.9, light=0.1), (1, 2)),
    # Three devices hold the model for the work of one: two are free for the busy one.
    "held units beyond the work are spare": (problem(4, heavy=1, light=3), UNNEEDED, (2, 2)),
    "unneeded loads go to the busiest model": (problem(4, heavy=1, light=1), UNNEEDED, (3, 1)),
    # In batches of four two devices carry four a second: 2.5 leave them 63 % busy, which batches of one could not.
    "the speed is that of the batches with most work": (
        problem(5, heavy=2, light=3),
        solution({pool("heavy", 4): 2} | LIGHT_1, heavy=2.5, light=0.2),
        (2, 3),
    ),
}


def test_share_out_devices_by_hand() -> None:
    for name, (asked, found, (heavy, light)) in SHARED.items():
        assert share_out(asked, found, True) == {("gpu", "heavy"): heavy, ("gpu", "light"): light}, name


def test_share_out_without_loads_moves_no_held_model() -> None:
    """A busy model gets none; of three needed and three held on five devices two stay."""
    few = solution(HEAVY_1 | LIGHT_3, heavy=0.1, light=2.5)

    busy = share_out(problem(5, heavy=2, light=3), BUSY_HEAVY[1.62], may_load=False)
    crowded = share_out(problem(5, heavy=3, light=2), few, may_load=False)

    assert busy == crowded == {("gpu", "heavy"): 2, ("gpu", "light"): 3}


def test_share_out_omits_kinds_without_models() -> None:
    found = solution({pool("heavy"): 1}, heavy=0.1)

    assert share_out(replace(problem(1, heavy=1), devices={"gpu": 1, "toy": 4}), found, True) == {("gpu", "heavy"): 1}


def settled(
    rates: dict[str, float],
    counts: dict[str, int],
    before: int = 0,
    slo_s: float = 4.0,
    load_s: float = 0.0,
    held: int = 9,
) -> dict[str, dict[int, int]] | None:
    """Return units by model and batch size."""
    asked = replace(
        problem(9, (replace(HEAVY, load_s=load_s), LIGHT), heavy=held, light=held), slo_s=slo_s, horizon_s=10.0
    )
    found = settle_sizes(
        asked,
        solution({pool(model): count for model, count in counts.items()}, **rates),
        {("gpu", model): count for model, count in counts.items()},
        {("gpu", "heavy"): before},
    )
    if found is None:
        return None
    return {unit.component: {unit.batch_size: count} for unit, count in found.items()}


SETTLED = {
    # Four devices carry four a second in batches of one, eight in batches of four; no size carries nine.
    "78 % busy": (3.1, {}, 1),
    "83 % busy": (3.3, {}, 4),
    "large batches carry it": (7.0, {}, 4),
    "no batches carry it": (9.0, {}, 4),
    # Large batches in force stay until small ones would be at most 60 % busy.
    "large in force, small ones 58 % busy": (2.3, {"before": 4}, 1),
    "large in force, small ones 60 % busy": (2.4, {"before": 4}, 1),
    "large in force, small ones 63 % busy": (2.5, {"before": 4}, 4),
    "large in force, small ones 83 % busy": (3.3, {"before": 4}, 4),
    "small in force, 78 % busy": (3.1, {"before": 1}, 1),
    "small in force, 83 % busy": (3.3, {"before": 1}, 4),
    # Two of four load the model for 5 s of 10: they carry three a second in batches of one, and 2.5 is 83 %.
    "two of four devices load": (2.5, {"load_s": 5.0, "held": 2}, 4),
    "none of four devices loads": (2.5, {"load_s": 5.0, "held": 4}, 1),
    "large batches are late": (3.3, {"slo_s": 1.0}, 1),
}


def test_settle_sizes_by_hand() -> None:
    for name, (rate, changes, size) in SETTLED.items():
        assert settled({"heavy": rate}, {"heavy": 4}, **changes) == {"heavy": {size: 4}}, name


def test_settle_sizes_late_large_batch_and_busy_small_one_is_none() -> None:
    assert settled({"heavy": 4.1}, {"heavy": 4}, slo_s=1.0) is None


def test_settle_sizes_model_without_devices_is_omitted() -> None:
    assert settled({"light": 1.0}, {"light": 4}) == {"light": {1: 4}}


@pytest.mark.parametrize(("heavy_s", "wait_s", "in_time"), [(2.0, 0.0, True), (2.01, 0.0, False), (1.5, 0.6, False)])
def test_keeps_slo_cascade_counts_both_models(heavy_s: float, wait_s: float, in_time: bool) -> None:
    """Two seconds by the light model, within four."""
    asked = problem(4, (replace(HEAVY, wait_s=wait_s), LIGHT))
    found = solution({pool("heavy"): 1, pool("light"): 1}, cascade=1.0)

    assert keeps_slo(asked, found, {"light": 2.0, "heavy": heavy_s}) is in_time


def test_keeps_slo_ignores_unused_routes() -> None:
    found = solution({pool("light"): 1}, light=1.0)

    assert keeps_slo(problem(4), found, {"light": 2.0, "heavy": 9.0})


def test_keeps_slo_unknown_component_takes_no_time() -> None:
    asked = replace(problem(4), slo_s=0.5)

    assert keeps_slo(asked, solution({pool("heavy"): 1}, heavy=0.1), {})
    assert not keeps_slo(asked, solution({pool("heavy"): 1}, heavy=0.1), {"heavy": 0.6})
