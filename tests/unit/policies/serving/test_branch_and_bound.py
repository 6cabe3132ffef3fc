import itertools
import math
import random

import pytest

from pentimento.policies.serving.branch_and_bound import BranchAndBound
from pentimento.policies.serving.linear_program import LinearProgram

ALL = 10_000


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


def test_the_best_whole_numbers_are_those_of_all_choices() -> None:
    rng = random.Random(3)
    for _ in range(20):
        worths, weights = ([rng.uniform(1.0, 9.0) for _ in range(4)] for _ in range(2))
        most = rng.uniform(5.0, 40.0)

        found = knapsack(worths, weights, most).search(0.0, ALL)

        assert found.is_proven
        assert found.objective == pytest.approx(best_worth(worths, weights, most))
        assert all(value == pytest.approx(round(value)) for value in found.values)


def test_a_relaxation_that_is_whole_ends_the_search() -> None:
    found = knapsack([2.0, 1.0], [1.0, 1.0], most=4.0).search(0.0, ALL)

    assert found.values == pytest.approx((3.0, 1.0)) and found.relaxation_count == 1


def test_nothing_is_found_where_nothing_is_better_than_what_is_known() -> None:
    """Two of the first are the best, worth six; fractions would be worth 6.9."""
    items = knapsack([3.0, 2.0], [2.0, 1.5], most=4.6)
    best = items.search(0.0, ALL).objective

    found = items.search(0.0, ALL, above=best)

    assert best == pytest.approx(6.0)
    assert found.values == () and found.is_proven and found.objective == -math.inf


def test_a_search_that_is_cut_short_says_so() -> None:
    rng = random.Random(5)
    worths, weights = ([rng.uniform(5.0, 9.0) for _ in range(12)] for _ in range(2))
    items = knapsack(worths, weights, most=50.0)

    cut, whole = items.search(0.0, 15), items.search(0.0, ALL)

    assert cut.values and not cut.is_proven and cut.relaxation_count == 15
    assert whole.is_proven and whole.relaxation_count > 15
    assert cut.objective <= whole.objective


def test_a_gap_ends_the_search_that_near_the_best() -> None:
    rng = random.Random(5)
    worths, weights = ([rng.uniform(5.0, 9.0) for _ in range(12)] for _ in range(2))
    items = knapsack(worths, weights, most=50.0)

    near, best = items.search(0.05, ALL), items.search(0.0, ALL)

    assert near.is_proven and near.relaxation_count < best.relaxation_count
    assert best.objective * 0.95 <= near.objective <= best.objective


def test_other_variables_may_be_held_at_nothing_and_let_go_again() -> None:
    """One item at most, and up to 2.5 of what needs none."""
    program = LinearProgram()
    item, rest = program.variable(1.0, high=1.5, integer=True), program.variable(1.0, high=2.5)
    searched = BranchAndBound(program.relaxation(), [item])

    searched.bound([rest], [0.0])
    held = searched.search(0.0, ALL)
    searched.bound([rest], [2.5])

    assert held.values == pytest.approx((1.0, 0.0))
    assert searched.search(0.0, ALL).values == pytest.approx((1.0, 2.5))


def test_what_contradicts_itself_has_no_values() -> None:
    program = LinearProgram()
    item = program.variable(high=1.0, integer=True)
    program.require([(item, 1.0)], at_least=0.4, at_most=0.6)

    assert BranchAndBound(program.relaxation(), [item]).search(0.0, ALL).values == ()


def test_equal_programs_are_searched_alike() -> None:
    """On the way to a first solution by what is nearest to whole, later by what is furthest from it."""
    rng = random.Random(5)
    worths, weights = ([rng.uniform(5.0, 9.0) for _ in range(12)] for _ in range(2))
    items = knapsack(worths, weights, most=50.0)

    found = [items.search(gap, ALL).relaxation_count for gap in (0.0, 0.05, 0.0)]

    assert found == [21, 2, 21]
