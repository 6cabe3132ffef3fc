import itertools
import math
from operator import mul
from random import Random

import pytest

from pentimento.policies.serving.linear_program import LinearProgram


def test_fractions_are_found_where_they_are_allowed() -> None:
    """max x + y with x + 2y <= 4 and 3x + y <= 6: the lines meet at (1.6, 1.2)."""
    program = LinearProgram()
    x, y = program.variable(1.0), program.variable(1.0)
    program.require([(x, 1.0), (y, 2.0)], at_most=4.0)
    program.require([(x, 3.0), (y, 1.0)], at_most=6.0)

    solved = program.solve()

    assert solved is not None and solved.is_optimal
    assert solved.values == pytest.approx((1.6, 1.2))
    assert solved.objective == pytest.approx(2.8)


def test_whole_numbers_are_kept_whole() -> None:
    """The same with whole numbers: (2, 0) and (1, 1) give 2, nothing gives 3."""
    program = LinearProgram()
    x, y = program.variable(1.0, integer=True), program.variable(1.0, integer=True)
    program.require([(x, 1.0), (y, 2.0)], at_most=4.0)
    program.require([(x, 3.0), (y, 1.0)], at_most=6.0)

    solved = program.solve()

    assert solved is not None
    assert solved.objective == pytest.approx(2.0)
    assert all(value == pytest.approx(round(value)) for value in solved.values)


def test_nothing_short_of_the_best_is_taken_where_nobody_asked_for_less() -> None:
    """Twelve things, each of which is taken or left, within three limits: all 4,096 ways are tried."""
    random = Random(0)
    weights = [random.randint(1, 30) for _ in range(12)]
    rows = [[random.randint(1, 30) for _ in range(12)] for _ in range(3)]
    program = LinearProgram()
    things = [program.choice(float(weight)) for weight in weights]
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


def test_a_variable_stays_within_its_bounds() -> None:
    program = LinearProgram()
    program.variable(1.0, high=2.5)
    program.variable(-1.0)

    solved = program.solve()

    assert solved is not None and solved.values == (2.5, 0.0)


def test_a_sum_keeps_its_lower_limit() -> None:
    program = LinearProgram()
    x = program.variable(-1.0)
    program.require([(x, 2.0)], at_least=3.0)

    solved = program.solve()

    assert solved is not None and solved.values == (1.5,)


def test_what_contradicts_itself_has_no_solution() -> None:
    program = LinearProgram()
    x = program.choice()
    program.require([(x, 1.0)], at_least=0.4, at_most=0.6)

    assert program.solve() is None


def test_no_time_finds_nothing_or_says_that_it_is_not_the_best() -> None:
    program = LinearProgram()
    items = [program.choice(weight=math.sqrt(index + 2)) for index in range(60)]
    program.require(((item, math.sqrt(7 * index + 3)) for index, item in enumerate(items)), at_most=100.0)

    solved = program.solve(limit_s=0.0)

    assert solved is None or not solved.is_optimal
