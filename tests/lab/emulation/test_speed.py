"""Test a device with a speed that changes."""

import random
from collections.abc import Iterator
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.emulation.speed import Slowness, SpeedChanges


class Course:
    """Half as fast for a second, a quarter as fast for another, then as ever."""

    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        yield from ((0.5, 1.0), (0.25, 1.0), (1.0, inf))


def test_speed_course_continues_between_calls() -> None:
    slowness = Slowness(Course(), random.Random(1), now=10.0)

    assert [slowness.at(now) for now in (10.0, 10.9, 12.5)] == [2.0, 2.0, 1.0]


def test_work_takes_the_seconds_of_the_course() -> None:
    slowness = Slowness(Course(), random.Random(1))

    # Half a second of work in the first second, a quarter in the next, the rest at the usual speed.
    assert slowness.mean(0.0, 1.0) == 2.25


def test_a_steady_device_draws_nothing() -> None:
    source = random.Random(1)
    slowness = Slowness(SpeedChanges(), source)

    assert [slowness.at(now) for now in (0.0, 1e9)] == [1.0, 1.0]
    assert slowness.mean(0.0, 1e9) == 1.0
    assert source.getstate() == random.Random(1).getstate()


def test_speed_has_mean_one_and_its_variation() -> None:
    slowness = Slowness(SpeedChanges(0.3, period_s=1.0), random.Random(1))

    speeds = [1.0 / slowness.at(0.5 * tick) for tick in range(100_000)]

    mean = sum(speeds) / len(speeds)
    deviation = (sum((speed - mean) ** 2 for speed in speeds) / len(speeds)) ** 0.5
    assert (mean, deviation) == (pytest.approx(1.0, abs=0.01), pytest.approx(0.3, abs=0.01))


def test_speed_lasts_its_period_on_average() -> None:
    slowness = Slowness(SpeedChanges(0.3, period_s=2.0), random.Random(1))

    told = [slowness.at(0.01 * tick) for tick in range(1_000_000)]

    changes = sum(one != other for one, other in pairwise(told))
    assert 10_000 / changes == pytest.approx(2.0, rel=0.05)


def test_long_work_is_as_fast_as_steady() -> None:
    slowness = Slowness(SpeedChanges(0.3, period_s=1.0), random.Random(1))

    assert slowness.mean(0.0, 10_000.0) == pytest.approx(1.0, rel=0.02)


@given(st.integers(), st.floats(0.0, 2.0), st.lists(st.floats(0.01, 20.0), min_size=1, max_size=5))
def test_the_mean_over_work_is_that_of_its_parts(seed: int, variation: float, parts: list[float]) -> None:
    changes = SpeedChanges(variation, period_s=1.0)
    whole, in_parts = Slowness(changes, random.Random(seed)), Slowness(changes, random.Random(seed))

    now = 0.0
    for part in parts:
        now += part * in_parts.mean(now, part)

    assert now == pytest.approx(sum(parts) * whole.mean(0.0, sum(parts)))
