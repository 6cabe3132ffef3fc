from dataclasses import replace

import pytest

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    AllocationSolution,
    Component,
    Course,
    PlannedPool,
    PlannedRoute,
    Use,
)
from pentimento.policies.plan.joint.program import AllocationProgram

# One image takes 1 s and four take 1.6 s: at most 2.5 a second.
HEAVY = Component("heavy", {"gpu": (BatchCost(1, 1.0), BatchCost(4, 1.6))})
# An image takes 0.1 s.
LIGHT = Component("light", {"gpu": (BatchCost(1, 0.1),)})
BY_HEAVY = PlannedRoute("heavy", "noise", (Use("heavy", 1.0),), 1.0)
BY_LIGHT = PlannedRoute("light", "noise", (Use("light", 1.0),), 0.5)
PROBLEM = AllocationProblem({"noise": 2.0}, {"gpu": 4}, (HEAVY, LIGHT), (BY_HEAVY, BY_LIGHT), slo_s=1.2)


def solved(problem: AllocationProblem) -> AllocationSolution:
    solution = AllocationProgram(problem).search(0.0, 10_000, may_load=True)
    assert solution is not None and solution.is_optimal
    return solution


def rates_by_route(problem: AllocationProblem) -> dict[str, float]:
    rates: dict[str, float] = {}
    for course, rate in solved(problem).rates.items():
        rates[course.route] = rates.get(course.route, 0.0) + rate
    return {route: round(rate, 6) for route, rate in rates.items()}


def units_by_component(problem: AllocationProblem) -> dict[str, int]:
    units: dict[str, int] = {}
    for pool, count in solved(problem).units.items():
        units[pool.component] = units.get(pool.component, 0) + count
    return units


def test_best_model_serves_all_it_can_carry() -> None:
    solution = solved(PROBLEM)

    assert solution.rates == {Course("heavy", (PlannedPool("heavy", "gpu", 1),)): pytest.approx(2.0)}
    assert solution.served_share == 1.0


CASCADE = PlannedRoute("cascade", "noise", (Use("light", 1.0), Use("heavy", 0.1)), 0.8)
RESUMED = PlannedRoute("resumed", "latent", (Use("heavy", 0.5, 0.5),), 0.95)
REFINED = PlannedRoute("refined", "image", (Use("light", 0.5, 0.5),), 0.9)
EVERYWHERE = replace(LIGHT, costs={"gpu": LIGHT.costs["gpu"], "small": (BatchCost(1, 0.2),)})
# Eight requests a second need eight heavy devices with batches of one, or four with batches of four.
BUSY = replace(PROBLEM, demand={"noise": 8.0})
# Two devices hold the light model. The heavy one takes 30 s to load: half of the horizon, and of its capacity.
LOADING = replace(
    PROBLEM,
    devices={"gpu": 2},
    components=(replace(HEAVY, load_s=30.0), LIGHT),
    held={("gpu", "light"): 2},
    demand={"noise": 5.0},
)
HELD = replace(PROBLEM, devices={"gpu": 1}, components=(replace(HEAVY, load_s=30.0),), routes=(BY_HEAVY,), slo_s=1.0)
ROUTED = {
    "a larger batch within the SLO": (replace(BUSY, slo_s=1.6), {"heavy": 8.0}),
    "a wait before the batch leaves no time for a larger one": (
        replace(BUSY, slo_s=1.6, components=(replace(HEAVY, wait_s=0.1), LIGHT)),
        {"heavy": 3.0, "light": 5.0},
    ),
    # Three heavy devices carry three a second, and the light one carries the other three.
    "more than the heavy model carries": (replace(PROBLEM, demand={"noise": 6.0}), {"heavy": 3.0, "light": 3.0}),
    "nothing within the SLO": (replace(PROBLEM, slo_s=0.05), {}),
    # One light device carries ten a second; another device carries the deferred tenth.
    "a cascade by its deferred share": (
        replace(PROBLEM, demand={"noise": 10.0}, devices={"gpu": 2}, routes=(CASCADE,)),
        {"cascade": 10.0},
    ),
    "a cascade of exactly the SLO": (replace(PROBLEM, routes=(CASCADE,), slo_s=1.1), {"cascade": 2.0}),
    "a cascade beyond the SLO": (replace(PROBLEM, routes=(CASCADE,), slo_s=1.09), {}),
    # A hit takes half of the steps: one device carries two a second, each in half of the time.
    "a hit by its remaining steps": (
        replace(PROBLEM, demand={"latent": 2.0}, devices={"gpu": 1}, routes=(RESUMED,), slo_s=0.5),
        {"resumed": 2.0},
    ),
    "starts with their own demand": (
        replace(PROBLEM, demand={"noise": 1.0, "image": 4.0}, routes=(BY_HEAVY, REFINED)),
        {"heavy": 1.0, "refined": 4.0},
    ),
    "a model where it fits": (
        replace(PROBLEM, devices={"gpu": 1, "small": 3}, components=(HEAVY, EVERYWHERE), demand={"noise": 9.0}),
        {"heavy": 1.0, "light": 8.0},
    ),
    "a load that pays": (LOADING, {"heavy": 0.5, "light": 4.5}),
    # The quick device carries 0.9 a second with the heavy model; the other carries the rest with the light one.
    "a load by the device with the model on its disk": (
        replace(LOADING, components=(replace(HEAVY, loads_s={"gpu": (6.0, 30.0)}), LIGHT)),
        {"heavy": 0.9, "light": 4.1},
    ),
    "each load in its own time": (
        replace(LOADING, components=(replace(HEAVY, loads_s={"gpu": (6.0, 30.0)}),), routes=(BY_HEAVY,)),
        {"heavy": 1.4},
    ),
    # Each batch size has one device, and one device loads quickly. The easy requests need three quarters of its load.
    "loads of two batch sizes on the same devices": (
        replace(
            LOADING,
            demand={"noise": 5.0, "latent": 2.0},
            components=(replace(HEAVY, loads_s={"gpu": (6.0, 30.0)}),),
            routes=(BY_HEAVY, PlannedRoute("easy", "latent", (Use("heavy", 1.0, 0.7),), 0.9)),
        ),
        {"heavy": 0.6, "easy": 2.0},
    ),
    "a held model": (replace(HELD, held={("gpu", "heavy"): 1}), {"heavy": 1.0}),
    "a model that is not held": (HELD, {"heavy": 0.5}),
}


def test_rates_are_best_by_hand() -> None:
    assert {name: rates_by_route(problem) for name, (problem, _) in ROUTED.items()} == {
        name: rates for name, (_, rates) in ROUTED.items()
    }


def test_late_large_batch_leaves_load_to_light_model() -> None:
    assert rates_by_route(replace(BUSY, slo_s=1.2))["light"] > 0


def test_units_are_best_by_hand() -> None:
    cascade = replace(PROBLEM, demand={"noise": 10.0}, devices={"gpu": 2}, routes=(CASCADE,))

    assert units_by_component(cascade) == {"light": 1, "heavy": 1}
    assert units_by_component(replace(LOADING, horizon_s=30.0)) == {"light": 1}
    where = {(pool.kind, pool.component) for pool in solved(ROUTED["a model where it fits"][0]).units}
    assert where == {("gpu", "heavy"), ("small", "light")}


def test_demand_beyond_fleet_is_served_in_part() -> None:
    solution = solved(replace(PROBLEM, demand={"noise": 80.0}))

    assert solution.served_share == pytest.approx(0.5)
    assert sum(solution.units.values()) == 4


def test_impossible_slo_serves_nothing() -> None:
    assert solved(replace(PROBLEM, slo_s=0.05)).served_share == 0.0


def test_equal_plans_fewest_loads_win() -> None:
    twin = replace(HEAVY, name="twin")
    by_twin = PlannedRoute("twin", "noise", (Use("twin", 1.0),), 1.0)
    problem = replace(PROBLEM, components=(HEAVY, twin), routes=(BY_HEAVY, by_twin), held={("gpu", "twin"): 2})

    assert units_by_component(problem) == {"twin": 2}


def test_program_searches_with_loads_and_without() -> None:
    """One device holds the heavy model and one the light model. Two requests a second need both for the heavy model."""
    problem = replace(PROBLEM, devices={"gpu": 2}, held={("gpu", "heavy"): 1, ("gpu", "light"): 1})
    program = AllocationProgram(problem)

    def share_of_heavy(may_load: bool) -> float:
        solution = program.search(0.0, 1_000, may_load=may_load)
        assert solution is not None
        return sum(rate for course, rate in solution.rates.items() if course.route == "heavy")

    assert [share_of_heavy(may_load) for may_load in (False, True, False)] == pytest.approx([1.0, 2.0, 1.0])


def test_search_above_known_best_finds_none() -> None:
    known = solved(PROBLEM)
    program = AllocationProgram(PROBLEM)

    assert program.search(0.0, 1_000, may_load=True, above=known.objective) is None
    assert program.search(0.0, 1_000, may_load=True, above=known.objective - 0.1) is not None


def test_search_below_earlier_limit_finds_held_plan() -> None:
    """The first search stays above the best objective without loads, so it excludes no lower solutions."""
    problem = replace(PROBLEM, devices={"gpu": 1}, held={("gpu", "heavy"): 1})
    program, best = AllocationProgram(problem), solved(problem).objective

    assert program.search(0.0, 1_000, may_load=False, above=best + 1.0) is None
    again = program.search(0.0, 1_000, may_load=True, above=best - 0.5)

    assert again is not None and again.objective == pytest.approx(best)


def test_highs_search_finds_same_objective() -> None:
    busy = replace(PROBLEM, demand={"noise": 11.0})
    other = AllocationProgram(busy).solved_by_highs(10.0, 0.0)

    assert other is not None and other.objective == pytest.approx(solved(busy).objective)


def test_room_is_kept_where_worth_more_than_quality() -> None:
    """Two devices serve all noise requests by the heavy model, or one device keeps room for ten light images a
    second."""
    room = PlannedRoute("room", "surge", (Use("light", 1.0),), 0.0)
    two = replace(PROBLEM, devices={"gpu": 2}, demand={"noise": 2.0, "surge": 10.0}, routes=(*PROBLEM.routes, room))
    little, much = replace(two, rooms={"surge": 0.01}), replace(two, rooms={"surge": 0.1})

    assert set(units_by_component(little)) == {"heavy"}
    assert "light" in units_by_component(much)
    assert (little.wanted, solved(much).served_share) == (2.0, pytest.approx(1.0))


def test_pool_loads_no_more_devices_than_it_has() -> None:
    """A load takes 0.4 of the horizon. Hurried requests need a pool with batches of one, easy ones a pool with batches
    of four. The second pool would carry all easy requests if the first could load both devices."""
    hurried = PlannedRoute("hurried", "noise", (Use("heavy", 1.0, 1.5),), 1.0)
    easy = PlannedRoute("easy", "latent", (Use("heavy", 1.0, 1.0),), 1.0)
    asked = replace(
        PROBLEM,
        demand={"noise": 0.2, "latent": 2.5},
        devices={"gpu": 2},
        components=(replace(HEAVY, load_s=24.0),),
        routes=(hurried, easy),
        slo_s=1.6,
    )

    assert rates_by_route(asked) == {"easy": 2.5}


def test_second_price_chooses_cheaper_model() -> None:
    """A heavy run in batches of four takes 0.4 s of a device. A light run takes 0.1 s and has half the quality."""
    assert rates_by_route(replace(PROBLEM, second_price=1.6)) == {"heavy": 2.0}
    assert rates_by_route(replace(PROBLEM, second_price=1.7)) == {"light": 2.0}


def test_second_price_refuses_nothing() -> None:
    assert solved(replace(PROBLEM, second_price=5.0)).served_share == 1.0


def test_objective_stays_within_bound() -> None:
    """Each of two requests a second is worth 11, minus 0.04 for 0.4 s of the heavy model."""
    priced = replace(PROBLEM, second_price=0.1)

    assert solved(priced).objective == pytest.approx(2 * 10.96)
    assert priced.bound == pytest.approx(2 * 10.96)


def test_worth_of_room_has_no_price() -> None:
    room = PlannedRoute("room", "surge", (Use("light", 1.0),), 0.5)
    problem = replace(PROBLEM, routes=(*PROBLEM.routes, room), rooms={"surge": 0.02}, second_price=0.1)

    assert problem.worth(room) == 0.02


def test_device_seconds_sum_all_uses() -> None:
    """The cascade takes a light run of 0.1 s and 0.2 heavy runs of 0.4 s."""
    cascade = replace(CASCADE, uses=(Use("light", 1.0), Use("heavy", 0.2)))

    assert replace(PROBLEM, components=(HEAVY, LIGHT)).device_seconds(cascade) == pytest.approx(0.1 + 0.2 * 0.4)
