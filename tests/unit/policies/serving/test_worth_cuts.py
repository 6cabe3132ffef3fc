import itertools
import math
import random

import numpy as np
import pytest

from pentimento.policies.serving.branch_and_bound import BranchAndBound
from pentimento.policies.serving.linear_program import LinearProgram
from pentimento.policies.serving.worth_cuts import WorthCuts

# Worth 10 at (2, 1): one more of the first is worth 3, one more of the second costs 2.
CUT = (10.0, np.array([2.0, 1.0]), np.array([3.0, -2.0]))


def cuts(*known: tuple[float, np.ndarray, np.ndarray]) -> WorthCuts:
    found = WorthCuts(2)
    for one in known:
        found.add(*one)
    return found


def test_nothing_is_left_out_while_nothing_is_known() -> None:
    assert cuts().let(((0.0, 1.0), (0.0, 1.0)), math.inf)


def test_nothing_is_left_out_where_anything_is_good_enough() -> None:
    assert cuts(CUT).let(((0.0, 0.0), (9.0, 9.0)), -math.inf)


@pytest.mark.parametrize(("units", "worth"), [([2, 1], 10.0), ([3, 1], 13.0), ([2, 3], 6.0), ([0, 0], 6.0)])
def test_units_may_be_worth_what_each_more_of_them_promises(units: list[int], worth: float) -> None:
    known = cuts(CUT)

    assert known.let_units(units, worth - 0.1) and not known.let_units(units, worth)


def test_within_bounds_the_most_of_what_gains_and_the_least_of_what_costs_count() -> None:
    """Four of the first and none of the second: 10 + 2 * 3 + 1 * 2."""
    known, bounds = cuts(CUT), ((1.0, 4.0), (0.0, 5.0))

    assert known.let(bounds, 17.9) and not known.let(bounds, 18.0)


def test_the_cut_that_promises_least_counts() -> None:
    flat = (11.0, np.array([0.0, 0.0]), np.array([0.0, 0.0]))

    assert not cuts(CUT, flat).let_units([4, 0], 11.0)


def test_what_is_met_but_for_rounding_is_not_exceeded() -> None:
    assert not cuts(CUT).let_units([2, 1], 10.0 - 1e-10)


def test_a_variable_without_a_bound_may_be_worth_anything() -> None:
    assert cuts(CUT).let(((0.0, math.inf), (0.0, 1.0)), 1e9)


def test_a_variable_without_a_bound_that_is_worth_nothing_leaves_the_rest_open() -> None:
    free = (10.0, np.array([0.0, 0.0]), np.array([0.0, 1.0]))

    assert cuts(free).let(((0.0, math.inf), (0.0, 1.0)), 10.5)


def test_more_cuts_than_there_was_room_for_are_all_kept() -> None:
    flat = [(100.0 - number, np.array([0.0, 0.0]), np.array([0.0, 0.0])) for number in range(70)]

    known = cuts(*flat)

    assert known.let_units([0, 0], 30.9) and not known.let_units([0, 0], 31.0)


@pytest.mark.parametrize("seed", range(8))
def test_no_cut_of_a_relaxation_is_exceeded_by_whole_values(seed: int) -> None:
    """Relaxations of a part of the values, of which each says something of all of them."""
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
        known.add(part.objective, *searched.of_whole(part))

    for choice in itertools.product(range(4), repeat=3):
        found = searched.relaxed(tuple((float(one), float(one)) for one in choice))
        if found is not None:
            assert known.let_units(choice, found.objective - 1e-6 * (1.0 + found.objective))
