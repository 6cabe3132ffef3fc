"""What becomes of devices that a solution does not need, on fleets small enough to do by hand."""

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
CONTROL = Component("control", {"gpu": (BatchCost(1, 1.0),)})
BY_HEAVY = PlannedRoute("heavy", "noise", (Use("heavy", 1.0),), 1.0)
BY_LIGHT = PlannedRoute("light", "noise", (Use("light", 1.0),), 0.5)
CASCADE = PlannedRoute("cascade", "noise", (Use("light", 1.0), Use("heavy", 0.5)), 0.8)
CONTROLLED = PlannedRoute("controlled", "noise", (Use("heavy", 1.0), Use("control", 0.5, 0.0)), 1.0)
ROUTES = (BY_HEAVY, BY_LIGHT, CASCADE)


def pool(component: str, batch_size: int = 1, kind: str = "gpu") -> PlannedPool:
    return PlannedPool(component, kind, batch_size)


def problem(devices: int, components: tuple[Component, ...] = (HEAVY, LIGHT), **held: int) -> AllocationProblem:
    return AllocationProblem(
        {"noise": 1.0},
        {"gpu": devices},
        components,
        (*ROUTES, CONTROLLED) if CONTROL in components else ROUTES,
        slo_s=4.0,
        held={("gpu", name): count for name, count in held.items()},
    )


def solution(units: dict[PlannedPool, int], **rates: float) -> AllocationSolution:
    """Every route through the pools of its components that there are."""
    paths = {route.name: [use.component for use in route.on_path] for route in (*ROUTES, CONTROLLED)}
    own = {unit.component: unit for unit in units}
    courses = {Course(name, tuple(own[model] for model in paths[name])): rate for name, rate in rates.items()}
    return AllocationSolution(units, courses, 1.0, 1.0)


def shared(asked: AllocationProblem, found: AllocationSolution, may_load: bool = True) -> dict[str, int]:
    return {model: count for (_, model), count in share_out(asked, found, may_load).items()}


def test_work_of_sums_all_routes_of_component() -> None:
    found = solution({pool("heavy"): 2, pool("light"): 2}, heavy=0.5, light=0.25, cascade=1.0)

    assert work_of(problem(4), found, "heavy") == pytest.approx(0.5 + 0.5)
    assert work_of(problem(4), found, "light") == pytest.approx(0.25 + 1.0)
    assert work_of(problem(4), found, "heavy", "gpu") == pytest.approx(1.0)
    assert work_of(problem(4), found, "heavy", "small") == 0.0


def test_work_of_work_aside_counts_on_any_kind() -> None:
    asked, found = problem(4, (HEAVY, CONTROL)), solution({pool("heavy"): 2, pool("control"): 1}, controlled=1.0)

    assert work_of(asked, found, "control") == work_of(asked, found, "control", "small") == pytest.approx(0.5)


def test_share_out_spare_devices_keep_models() -> None:
    found = solution({pool("heavy"): 1}, heavy=0.1)

    assert shared(problem(5, heavy=3, light=2), found) == {"heavy": 3, "light": 2}


def test_share_out_keeps_no_more_than_devices() -> None:
    """Three of the light model are needed and three of the heavy one held, on five devices."""
    found = solution({pool("heavy"): 1, pool("light"): 3}, heavy=0.1, light=2.5)

    assert shared(problem(5, heavy=3, light=2), found, may_load=False) == {"heavy": 2, "light": 3}


def test_share_out_empty_device_goes_to_busiest_model() -> None:
    found = solution({pool("heavy"): 1, pool("light"): 2}, heavy=0.5, light=1.8)

    assert shared(problem(4, heavy=1, light=2), found) == {"heavy": 1, "light": 3}


@pytest.mark.parametrize(
    ("rate", "may_load", "heavy_count"),
    [
        (1.58, True, 2),  # 79 % busy
        (1.62, True, 3),
        (1.62, False, 2),
        (1.95, True, 3),
    ],
)
def test_share_out_idle_model_gives_device_to_busy_one(rate: float, may_load: bool, heavy_count: int) -> None:
    """Two devices are busy with the heavy model; three have the light one and hardly anything to do."""
    found = solution({pool("heavy"): 2, pool("light"): 1}, heavy=rate, light=0.2)

    counts = shared(problem(5, heavy=2, light=3), found, may_load)

    assert counts == {"heavy": heavy_count, "light": 5 - heavy_count}


@pytest.mark.parametrize(("light_rate", "gives"), [(1.1, True), (1.3, False)])
def test_share_out_giver_keeps_room(light_rate: float, gives: bool) -> None:
    """Of three devices two would be 55 % busy, or 65 %."""
    found = solution({pool("heavy"): 1, pool("light"): 2}, heavy=0.9, light=light_rate)

    assert shared(problem(4, heavy=1, light=3), found) == (
        {"heavy": 2, "light": 2} if gives else {"heavy": 1, "light": 3}
    )


def test_share_out_giver_keeps_needed_devices() -> None:
    """The solution has two for the little that the light model does: they are on their way, and carry nothing yet."""
    found = solution({pool("heavy"): 1, pool("light"): 2}, heavy=0.9, light=0.1)

    assert shared(problem(3, heavy=1), found) == {"heavy": 1, "light": 2}


def test_share_out_units_beyond_work_are_spare() -> None:
    """Three for what one carries: all of them hold it, so two are free for the busy one."""
    found = solution({pool("heavy"): 1, pool("light"): 3}, heavy=0.95, light=0.3)

    assert shared(problem(4, heavy=1, light=3), found) == {"heavy": 2, "light": 2}


def test_share_out_work_aside_keeps_units() -> None:
    asked = problem(4, (HEAVY, CONTROL), heavy=1, control=3)
    found = solution({pool("heavy"): 1, pool("control"): 3}, controlled=0.95)

    assert shared(asked, found) == {"heavy": 1, "control": 3}


def test_share_out_speed_is_that_of_most_work() -> None:
    """In batches of four two devices carry four a second: 2.5 leave them 63 % busy, while batches of one could not."""
    found = solution({pool("heavy", 4): 2, pool("light"): 1}, heavy=2.5, light=0.2)

    assert shared(problem(5, heavy=2, light=3), found) == {"heavy": 2, "light": 3}


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
    """Units by model and batch size."""
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


@pytest.mark.parametrize(("rate", "size"), [(3.1, 1), (3.3, 4), (7.0, 4), (9.0, 4)])
def test_settle_sizes_smallest_batch_at_most_four_fifths_busy(rate: float, size: int) -> None:
    """Four devices carry four a second in batches of one, eight in batches of four; nothing carries nine."""
    assert settled({"heavy": rate}, {"heavy": 4}) == {"heavy": {size: 4}}


@pytest.mark.parametrize(("rate", "size"), [(2.3, 1), (2.4, 1), (2.5, 4), (3.3, 4)])
def test_settle_sizes_larger_batch_stays_until_much_room(rate: float, size: int) -> None:
    """Batches of one would be 58 % busy, 60 %, 63 % and 83 %."""
    assert settled({"heavy": rate}, {"heavy": 4}, before=4) == {"heavy": {size: 4}}


def test_settle_sizes_busy_small_batch_gives_way() -> None:
    assert settled({"heavy": 3.3}, {"heavy": 4}, before=1) == {"heavy": {4: 4}}
    assert settled({"heavy": 3.1}, {"heavy": 4}, before=1) == {"heavy": {1: 4}}


def test_settle_sizes_loading_devices_carry_less() -> None:
    """Two of four load the model for 5 s of 10: they carry three a second in batches of one, of which 2.5 is 83 %."""
    assert settled({"heavy": 2.5}, {"heavy": 4}, load_s=5.0, held=2) == {"heavy": {4: 4}}
    assert settled({"heavy": 2.5}, {"heavy": 4}, load_s=5.0, held=4) == {"heavy": {1: 4}}


def test_settle_sizes_late_large_batch_leaves_small_or_none() -> None:
    assert settled({"heavy": 3.3}, {"heavy": 4}, slo_s=1.0) == {"heavy": {1: 4}}
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


def test_share_out_unneeded_loads_go_to_busiest() -> None:
    """Three for what one carries that it holds: the other two go to the busiest."""
    found = solution({pool("heavy"): 1, pool("light"): 3}, heavy=0.95, light=0.3)

    assert shared(problem(4, heavy=1, light=1), found) == {"heavy": 3, "light": 1}
