"""Vary the speed of a device over time, as on shared or warm devices."""

import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from lab.emulation.cost_draws import draw
from pentimento.profiles.costs import Cost


class SpeedCourse(Protocol):
    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        """Factors of the speed, one after the other without end, each with the seconds that it lasts (inf: for ever).
        A course that draws nothing leaves `source` alone."""


@dataclass(frozen=True)
class SpeedChanges:
    """The speed is multiplied by a log-normal factor of mean 1 and standard deviation `variation`, for `period_s`
    seconds on average; then by another one. On the whole as much gets done as without."""

    variation: float = 0.0
    period_s: float = 5.0

    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        if not self.variation:
            yield 1.0, math.inf
        speed = Cost(1.0, self.variation**2, 2)
        while True:
            yield draw(speed, source), source.expovariate(1.0 / self.period_s)


STEADY = SpeedChanges()


@dataclass(frozen=True)
class Both:
    """Combine two speed courses by multiplying their factors."""

    first: SpeedCourse
    second: SpeedCourse

    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        courses = [self.first.speeds(source), self.second.speeds(source)]
        factors, left_s = [1.0, 1.0], [0.0, 0.0]
        while True:
            for number, course in enumerate(courses):
                if left_s[number] <= 0.0:
                    factors[number], left_s[number] = next(course)
            lasts_s = min(left_s)
            yield math.prod(factors), lasts_s
            left_s = [left - lasts_s for left in left_s]


# Shared processors are counted again after this time. A real model's step takes longer.
LOOK_S = 0.01


@dataclass(frozen=True)
class SharedProcessors:
    """The part of a processor that a device gets: all of it while no more devices denoise than there are processors,
    else an equal part. `others`: how many other devices denoise now."""

    count: int
    others: Callable[[], int]

    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        while True:
            yield min(1.0, self.count / (1 + self.others())), LOOK_S


class Slowness:
    """The slowness of one device, which the last value gives until `until`."""

    def __init__(self, course: SpeedCourse, source: random.Random, now: float = 0.0) -> None:
        self._speeds = course.speeds(source)
        self.until = now
        self._factor = 1.0

    def at(self, now: float) -> float:
        """Times do not go back."""
        while now >= self.until:
            speed, lasts_s = next(self._speeds)
            self._factor = 1.0 / speed
            self.until += lasts_s
        return self._factor

    def mean(self, now: float, usual_s: float) -> float:
        """Over all changes until what begins now, and takes so long without them, ends."""
        if now + usual_s * self.at(now) <= self.until:
            return self._factor
        at, left_s = now, usual_s
        while at + left_s * self.at(at) > self.until:
            left_s -= (self.until - at) / self.at(at)
            at = self.until
        return (at + left_s * self.at(at) - now) / usual_s


def steps_until(seconds: float, step_s: float) -> int:
    """Return the number of steps that begin within `seconds`, at least one."""
    return max(math.ceil(seconds / step_s), 1) if step_s > 0.0 else sys.maxsize
