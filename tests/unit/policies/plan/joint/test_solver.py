"""Solve small programs with best values known by hand, or by enumeration."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from operator import mul

import numpy as np
import pytest

from pentimento.policies.plan.joint.solver import (
    Bounds,
    BranchAndBound,
    Budget,
    LinearProgram,
    Relaxed,
    WorthCuts,
    moves,
    rounded,
)

ALL = 10_000
INF = math.inf


def program_of(
    variables: Sequence[tuple[float, float, bool]], limits: Sequence[tuple[Sequence[float], float, float]] = ()
) -> LinearProgram:
    """Build a program from (weight, high, whole) by variable, and (factors, least, most) by constraint."""
    program = LinearProgram()
    for weight, high, whole in variables:
        program.variable(weight, high, integer=whole)
    for factors, least, most in limits:
        program.require(enumerate(factors), least, most)
    return program


# x + 2y <= 4 and 3x + y <= 6: the lines meet at (1.6, 1.2); of whole numbers (2, 0) and (1, 1) give 2, nothing gives 3.
CROSSING = (((1.0, 2.0), -INF, 4.0), ((3.0, 1.0), -INF, 6.0))
PROGRAMS = {
    "fractions where they are allowed": (
        program_of([(1.0, INF, False)] * 2, CROSSING),
        2.8,
        (1.6, 1.2),
    ),
    "whole numbers": (program_of([(1.0, INF, True)] * 2, CROSSING), 2.0, None),
    "within bounds": (program_of([(1.0, 2.5, False), (-1.0, INF, False)]), 2.5, (2.5, 0.0)),
    "at a lower limit": (program_of([(-1.0, INF, False)], [((2.0,), 3.0, INF)]), -1.5, (1.5,)),
}


def test_solve_known_programs_finds_best() -> None:
    for name, (program, objective, values) in PROGRAMS.items():
        solved = program.solve()

        assert solved is not None and solved.is_optimal, name
        assert solved.objective == pytest.approx(objective), name
        assert values is None or solved.values == pytest.approx(values), name


def test_solve_whole_variables_are_whole() -> None:
    solved = PROGRAMS["whole numbers"][0].solve()

    assert solved is not None
    assert all(value == pytest.approx(round(value)) for value in solved.values)


def test_solve_contradiction_finds_nothing() -> None:
    program = program_of([(0.0, 1.0, True)], [((1.0,), 0.4, 0.6)])

    assert program.solve() is None
    assert BranchAndBound(program.relaxation(), [0]).search(0.0, ALL).values == ()


def test_solve_knapsack_equals_enumeration() -> None:
    """Twelve things are each taken or left, within three limits: all 4,096 ways are tried."""
    rng = random.Random(0)
    weights = [rng.randint(1, 30) for _ in range(12)]
    rows = [[rng.randint(1, 30) for _ in range(12)] for _ in range(3)]
    program = LinearProgram()
    things = [program.variable(float(weight), 1.0, integer=True) for weight in weights]
    for row in rows:
        program.require(zip(things, map(float, row), strict=True), at_most=sum(row) // 3)

    solved = program.solve()

    best = max(
        sum(map(mul, taken, weights))
        for taken in itertools.product((0, 1), repeat=12)
        if all(sum(map(mul, taken, row)) <= sum(row) // 3 for row in rows)
    )
    assert solved is not None
    assert solved.objective == pytest.approx(best)


def test_solve_without_time_is_not_optimal() -> None:
    program = LinearProgram()
    items = [program.variable(math.sqrt(index + 2), 1.0, integer=True) for index in range(60)]
    program.require(((item, math.sqrt(7 * index + 3)) for index, item in enumerate(items)), at_most=100.0)

    solved = program.solve(limit_s=0.0)

    assert solved is None or not solved.is_optimal


def knapsack(worths: list[float], weights: list[float], most: float) -> BranchAndBound:
    program = LinearProgram()
    items = [program.variable(worth, high=3.0, integer=True) for worth in worths]
    program.require(zip(items, weights, strict=True), at_most=most)
    return BranchAndBound(program.relaxation(), items)


def best_worth(worths: list[float], weights: list[float], most: float) -> float:
    choices = itertools.product(range(4), repeat=len(worths))
    return max(
        sum(count * worth for count, worth in zip(counts, worths, strict=True))
        for counts in choices
        if sum(count * weight for count, weight in zip(counts, weights, strict=True)) <= most
    )


def test_search_equals_enumeration() -> None:
    rng = random.Random(3)
    for _ in range(20):
        worths, weights = ([rng.uniform(1.0, 9.0) for _ in range(4)] for _ in range(2))
        most = rng.uniform(5.0, 40.0)

        found = knapsack(worths, weights, most).search(0.0, ALL)

        assert found.is_optimal
        assert found.objective == pytest.approx(best_worth(worths, weights, most))
        assert all(value == pytest.approx(round(value)) for value in found.values)


def test_search_whole_relaxation_ends_it() -> None:
    found = knapsack([2.0, 1.0], [1.0, 1.0], most=4.0).search(0.0, ALL)

    assert found.values == pytest.approx((3.0, 1.0)) and found.relaxation_count == 1


def test_search_above_best_finds_nothing() -> None:
    """Two of the first are the best, worth six; fractions would be worth 6.9."""
    items = knapsack([3.0, 2.0], [2.0, 1.5], most=4.6)
    best = items.search(0.0, ALL).objective

    found = items.search(0.0, ALL, above=best)

    assert best == pytest.approx(6.0)
    assert found.values == () and found.is_optimal and found.objective == -math.inf


def twelve_items() -> BranchAndBound:
    rng = random.Random(5)
    worths, weights = ([rng.uniform(5.0, 9.0) for _ in range(12)] for _ in range(2))
    return knapsack(worths, weights, most=50.0)


def test_search_cut_short_is_not_optimal() -> None:
    items = twelve_items()

    cut, whole = items.search(0.0, 15), items.search(0.0, ALL)

    assert cut.values and not cut.is_optimal and cut.relaxation_count == 15
    assert whole.is_optimal and whole.relaxation_count > 15
    assert cut.objective <= whole.objective


def test_search_gap_ends_near_best() -> None:
    items = twelve_items()

    near, best = items.search(0.05, ALL), items.search(0.0, ALL)

    assert near.is_optimal and near.relaxation_count < best.relaxation_count
    assert best.objective * 0.95 <= near.objective <= best.objective


def test_bound_changes_and_returns() -> None:
    """At most one item, and up to 2.5 of the variable without items."""
    program = LinearProgram()
    item, rest = program.variable(1.0, high=1.5, integer=True), program.variable(1.0, high=2.5)
    searched = BranchAndBound(program.relaxation(), [item])

    searched.bound([rest], [0.0])
    held = searched.search(0.0, ALL)
    searched.bound([rest], [2.5])

    assert held.values == pytest.approx((1.0, 0.0))
    assert searched.search(0.0, ALL).values == pytest.approx((1.0, 2.5))


def test_search_equal_programs_take_equal_relaxations() -> None:
    """The search branches on the value nearest to whole up to its first solution, and later on the furthest."""
    items = twelve_items()

    found = [items.search(gap, ALL).relaxation_count for gap in (0.0, 0.05, 0.0)]

    assert found == [21, 2, 21]


BOUNDS = ((0.0, 9.0),) * 3
EQUAL = Budget({0: 1, 1: 1, 2: 1}, most=6)


ROUNDED = {
    "largest remainders up while there is room": (EQUAL, BOUNDS, [1.4, 2.7, 1.9], [1, 3, 2]),
    "too costly down": (Budget({0: 2, 1: 1, 2: 1}, 4), BOUNDS, [1.9, 1.6, 0.6], [1, 2, 0]),
    "not beyond a bound": (EQUAL, ((0.0, 9.0), (0.0, 9.0), (0.0, 1.5)), [1.2, 2.3, 1.5], [2, 3, 1]),
    "almost whole stays": (EQUAL, BOUNDS, [0.9999999, 2.0, 3.0000001], [1, 2, 3]),
}


def test_rounded_keeps_budget_and_bounds() -> None:
    found = {name: rounded([budget], bounds, values) for name, (budget, bounds, values, _) in ROUNDED.items()}

    assert found == {name: units for name, (*_, units) in ROUNDED.items()}


MOVED = {
    "best gain first": ([EQUAL], BOUNDS, [2, 2, 2], [1.0, 5.0, 3.0], [[1, 3, 2], [1, 2, 3], [2, 3, 1]]),
    "within bounds": ([EQUAL], ((2.0, 9.0), (0.0, 2.0), (0.0, 9.0)), [2, 2, 2], [1.0, 5.0, 3.0], []),
    "too costly": ([Budget({0: 1, 1: 2}, 4)], BOUNDS, [2, 1, 0], [1.0, 5.0, 0.0], []),
    "not too costly": ([Budget({0: 1, 1: 2}, 4)], BOUNDS, [1, 1, 0], [1.0, 5.0, 0.0], [[0, 2, 0]]),
    "two budgets": ([Budget({0: 1}, 3), Budget({1: 1}, 3)], BOUNDS, [1, 1, 0], [1.0, 5.0, 0.0], []),
}


def test_moves_stay_within_budget_and_bounds() -> None:
    found = {name: list(moves(*row)) for name, (*row, _) in MOVED.items()}

    assert found == {name: units for name, (*_, units) in MOVED.items()}


def searched(seed: int, count: int = 40) -> tuple[BranchAndBound, list[Budget]]:
    rng, program = random.Random(seed), LinearProgram()
    units = [program.variable(high=9.0, integer=True) for _ in range(count)]
    for unit in units:
        steep, rest = rng.uniform(0.5, 3.5), rng.uniform(0.1, 0.6)
        rates = program.variable(rng.uniform(5.0, 9.0), high=steep), program.variable(rest, high=9.0)
        program.require([(rates[0], 1.0), (rates[1], 1.0), (unit, -rng.uniform(0.7, 1.3))], at_most=0.0)
    own = [units[number::4] for number in range(4)]
    for group in own:
        program.require([(unit, 1.0) for unit in group], at_most=17.0)
    budgets = [Budget({units.index(unit): 1 for unit in group}, 17) for group in own]
    return BranchAndBound(program.relaxation(), units), budgets


@pytest.mark.parametrize("seed", range(5))
def test_search_with_rounding_finds_better_values(seed: int) -> None:
    """Forty whole variables share four budgets; each further unit is worth less."""
    program, budgets = searched(seed)

    plain, sooner = program.search(1e-3, 40), program.search(1e-3, 40, budgets)

    assert sooner.objective > plain.objective


@pytest.mark.parametrize("seed", range(3))
def test_search_solves_whole_values_once(seed: int) -> None:
    """With few variables a search reaches the same rounded values again and again, from other parts."""
    solved: list[Bounds] = []
    program, budgets = searched(seed, count=12)
    relaxed = program.relaxed

    def noted(bounds: Bounds) -> Relaxed | None:
        solved.append(bounds)
        return relaxed(bounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "relaxed", noted)
        found = program.search(0.0, 10_000, budgets)

    whole = [bounds for bounds in solved if all(low == high for low, high in bounds)]
    assert found.is_optimal and whole
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize("seed", range(3))
def test_search_skips_known_whole_values(seed: int) -> None:
    """All that keep narrower budgets were searched before: better ones are found, or none."""
    program, budgets = searched(seed, count=12)
    narrow = [replace(budget, most=9) for budget in budgets]
    wide = program.search(0.0, 10_000, budgets)
    rounded_to: list[list[int]] = []
    relaxed = program.relaxed

    def noted(bounds: Bounds) -> Relaxed | None:
        if all(low == high for low, high in bounds):
            rounded_to.append([int(low) for low, _ in bounds])
        return relaxed(bounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "relaxed", noted)
        found = program.search(0.0, 10_000, budgets, wide.objective - 2.0, narrow)

    assert found.objective == pytest.approx(wide.objective)
    assert rounded_to and not any(all(one.left(units) >= 0 for one in narrow) for units in rounded_to)


# Worth 10 at (2, 1): one more of the first is worth 3, one more of the second costs 2.
CUT = (10.0, np.array([2.0, 1.0]), np.array([3.0, -2.0]))


def cuts(*known: tuple[float, np.ndarray, np.ndarray]) -> WorthCuts:
    found = WorthCuts(2)
    for one in known:
        found.add(*one)
    return found


def test_cuts_without_any_allow_all() -> None:
    assert cuts().let(((0.0, 1.0), (0.0, 1.0)), math.inf)


def test_cuts_without_limit_allow_all() -> None:
    assert cuts(CUT).let(((0.0, 0.0), (9.0, 9.0)), -math.inf)


@pytest.mark.parametrize(("units", "worth"), [([2, 1], 10.0), ([3, 1], 13.0), ([2, 3], 6.0), ([0, 0], 6.0)])
def test_cuts_bound_units_by_worths(units: list[int], worth: float) -> None:
    known = cuts(CUT)

    assert known.let_units(units, worth - 0.1) and not known.let_units(units, worth)


def test_cuts_within_bounds_take_best_corner() -> None:
    """Four of the first and none of the second: 10 + 2 * 3 + 1 * 2."""
    known, bounds = cuts(CUT), ((1.0, 4.0), (0.0, 5.0))

    assert known.let(bounds, 17.9) and not known.let(bounds, 18.0)


def test_cuts_lowest_one_counts() -> None:
    flat = (11.0, np.array([0.0, 0.0]), np.array([0.0, 0.0]))

    assert not cuts(CUT, flat).let_units([4, 0], 11.0)


def test_cuts_ignore_rounding_errors() -> None:
    assert not cuts(CUT).let_units([2, 1], 10.0 - 1e-10)


def test_cuts_unbounded_variable_allows_all() -> None:
    assert cuts(CUT).let(((0.0, math.inf), (0.0, 1.0)), 1e9)


def test_cuts_unbounded_worthless_variable_allows_all() -> None:
    free = (10.0, np.array([0.0, 0.0]), np.array([0.0, 1.0]))

    assert cuts(free).let(((0.0, math.inf), (0.0, 1.0)), 10.5)


def test_cuts_grow_beyond_first_room() -> None:
    flat = [(100.0 - number, np.array([0.0, 0.0]), np.array([0.0, 0.0])) for number in range(70)]

    known = cuts(*flat)

    assert known.let_units([0, 0], 30.9) and not known.let_units([0, 0], 31.0)


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_never_exceeded(seed: int) -> None:
    """Each relaxation of a part of the values bounds all values."""
    rng = random.Random(seed)
    program = LinearProgram()
    units = [program.variable(high=3.0, integer=True) for _ in range(3)]
    rates = [program.variable(rng.uniform(1.0, 5.0), high=rng.uniform(1.0, 6.0)) for _ in range(4)]
    program.require([(unit, 1.0) for unit in units], at_most=4.0)
    for unit in units:
        work = [(rate, -rng.uniform(0.0, 2.0)) for rate in rates]
        program.require([*work, (unit, rng.uniform(1.0, 3.0))], at_least=0.0)
    searched, known = BranchAndBound(program.relaxation(), units), WorthCuts(3)
    for bounds in (((0.0, 3.0),) * 3, ((0.0, 1.0), (1.0, 2.0), (0.0, 3.0)), ((1.0, 1.0), (1.0, 1.0), (2.0, 2.0))):
        part = searched.relaxed(bounds)
        assert part is not None
        known.add(part.objective, searched.own(part.values), searched.own(part.worths))

    for choice in itertools.product(range(4), repeat=3):
        found = searched.relaxed(tuple((float(one), float(one)) for one in choice))
        if found is not None:
            assert known.let_units(choice, found.objective - 1e-6 * (1.0 + found.objective))
