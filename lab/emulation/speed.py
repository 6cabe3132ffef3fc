"""Vary the speed of a device over time, as on shared or warm devices."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from lab.emulation.cost_draws import draw
from pentimento.profiles.costs import Cost


class SpeedCourse(Protocol):
    def speeds(self, source: random.Random) -> Iterator[tuple[float, float]]:
        """Factors of the speed, one after the other without end, each with the seconds that it lasts (inf: for ever).
        A course that draws nothing leaves `source` alone."""
        ...


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
