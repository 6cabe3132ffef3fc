import random
from dataclasses import replace

import pytest

from pentimento.policies.serving.branch_and_bound import BranchAndBound, Relaxed
from pentimento.policies.serving.linear_program import LinearProgram
from pentimento.policies.serving.whole_rounding import Bounds, Budget, moves, rounded

BOUNDS = ((0.0, 9.0),) * 3
EQUAL = Budget({0: 1, 1: 1, 2: 1}, most=6)


def test_the_largest_rests_are_rounded_up_while_there_is_room() -> None:
    assert rounded([EQUAL], BOUNDS, [1.4, 2.7, 1.9]) == [1, 3, 2]


def test_what_costs_more_than_is_left_is_rounded_down() -> None:
    assert rounded([Budget({0: 2, 1: 1, 2: 1}, most=4)], BOUNDS, [1.9, 1.6, 0.6]) == [1, 2, 0]


def test_nothing_is_rounded_beyond_its_bound() -> None:
    assert rounded([EQUAL], ((0.0, 9.0), (0.0, 9.0), (0.0, 1.5)), [1.2, 2.3, 1.5]) == [2, 3, 1]


def test_what_is_all_but_whole_stays_as_it_is() -> None:
    assert rounded([EQUAL], BOUNDS, [0.9999999, 2.0, 3.0000001]) == [1, 2, 3]


def test_the_unit_that_promises_most_moves_first() -> None:
    found = list(moves([EQUAL], BOUNDS, [2, 2, 2], [1.0, 5.0, 3.0]))

    assert found == [[1, 3, 2], [1, 2, 3], [2, 3, 1]]


def test_units_stay_within_their_bounds() -> None:
    bounds = ((2.0, 9.0), (0.0, 2.0), (0.0, 9.0))

    assert list(moves([EQUAL], bounds, [2, 2, 2], [1.0, 5.0, 3.0])) == []


def test_no_unit_moves_to_what_costs_more_than_is_left() -> None:
    budget = Budget({0: 1, 1: 2}, most=4)

    assert list(moves([budget], BOUNDS, [2, 1, 0], [1.0, 5.0, 0.0])) == []
    assert list(moves([budget], BOUNDS, [1, 1, 0], [1.0, 5.0, 0.0])) == [[0, 2, 0]]


def test_no_unit_moves_between_budgets() -> None:
    assert list(moves([Budget({0: 1}, 3), Budget({1: 1}, 3)], BOUNDS, [1, 1, 0], [1.0, 5.0, 0.0])) == []


@pytest.mark.parametrize("seed", range(5))
def test_rounding_finds_better_values_in_fewer_relaxations(seed: int) -> None:
    """Forty whole variables that share four budgets, worth less the more of them there is."""
    program, budgets = searched(seed)

    plain, sooner = program.search(1e-3, 40), program.search(1e-3, 40, budgets)

    assert sooner.objective > plain.objective


@pytest.mark.parametrize("seed", range(3))
def test_whole_values_that_were_solved_are_not_solved_again(seed: int) -> None:
    """Few variables: a search meets what it rounded to again and again, as roundings of other parts and as parts."""
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
    assert found.is_proven and whole
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize("seed", range(3))
def test_whole_values_that_are_known_are_not_solved_again(seed: int) -> None:
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
