"""How the speed of a device changes: beside others, or warm, it is slower at one time than at another."""

import math
import random
from dataclasses import dataclass

from pentimento.domain.profile import Cost


@dataclass(frozen=True)
class SpeedChanges:
    """The speed is multiplied by a log-normal factor of mean 1 and standard deviation `variation`, for `period_s`
    seconds on average; then by another one. On the whole as much gets done as without."""

    variation: float = 0.0
    period_s: float = 5.0


STEADY = SpeedChanges()


class Slowness:
    """By how much longer one device takes. `until` is the time to which what was told last holds. Where nothing
    changes, nothing is drawn from `source`."""

    def __init__(self, changes: SpeedChanges, source: random.Random) -> None:
        self.until = -math.inf if changes.variation > 0.0 else math.inf
        self._speed = Cost(1.0, changes.variation**2, 2)
        self._period_s = changes.period_s
        self._source = source
        self._factor = 1.0

    def at(self, now: float) -> float:
        """Times do not go back."""
        if now >= self.until:
            self._factor = 1.0 / self._speed.draw(self._source)
            self.until = now + self._source.expovariate(1.0 / self._period_s)
        return self._factor

    def mean(self, now: float, usual_s: float) -> float:
        """Over all changes until what begins now, and takes so long without them, ends."""
        at, left_s = now, usual_s
        while at + left_s * self.at(at) > self.until:
            left_s -= (self.until - at) / self.at(at)
            at = self.until
        return (at + left_s * self.at(at) - now) / usual_s if usual_s > 0.0 else self.at(now)
