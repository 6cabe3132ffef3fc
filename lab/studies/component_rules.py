"""Rules for component eviction that the suite does not ship, for comparison (`benchmarks/eviction_components.py`).

LRU and LFU are MLoRA's comparators, Eq. 3 is its rule for cold components (section 6.1), GDSF is from web caches. All
implement `domain.components.ComponentRule`.
"""

from dataclasses import dataclass
from math import exp

from pentimento.domain.components import Loadable

HOUR_S = 3600.0


@dataclass
class Used:
    """Hold the number of a component's uses, and the time of the last one."""

    count: int = 0
    last_s: float = 0.0


class CountedUses:
    """Count uses by name. Subclasses give the worth."""

    def __init__(self) -> None:
        self._used: dict[str, Used] = {}

    def note_use(self, component: Loadable, now_s: float) -> None:
        used = self.used(component)
        used.count += 1
        used.last_s = now_s

    def note_eviction(self, component: Loadable, now_s: float) -> None:
        """Do nothing."""

    def used(self, component: Loadable) -> Used:
        return self._used.setdefault(component.name, Used())


class Lru(CountedUses):
    """Rank by the time of the last use."""

    def worth(self, component: Loadable, now_s: float) -> float:
        return self.used(component).last_s


class Lfu(CountedUses):
    """Rank by the number of uses."""

    def worth(self, component: Loadable, now_s: float) -> float:
        return float(self.used(component).count)


class TimeDecayed(CountedUses):
    """Rank by MLoRA's Eq. 3: uses, decayed at `rate_per_hour` since the last one, times load seconds per byte."""

    def __init__(self, rate_per_hour: float) -> None:
        super().__init__()
        self._rate_per_s = rate_per_hour / HOUR_S

    def worth(self, component: Loadable, now_s: float) -> float:
        used = self.used(component)
        return used.count * exp(-self._rate_per_s * (now_s - used.last_s)) * component.density


class Gdsf:
    """Rank by GreedyDual-Size-Frequency (Cherkasova, 1998): uses, times load seconds per byte, plus a clock that rises
    to the worth of each evicted component, so that components without further uses fall behind."""

    def __init__(self) -> None:
        self._clock = 0.0
        self._uses: dict[str, tuple[int, float]] = {}

    def note_use(self, component: Loadable, now_s: float) -> None:
        count, _ = self._uses.get(component.name, (0, 0.0))
        self._uses[component.name] = (count + 1, self._clock)

    def note_eviction(self, component: Loadable, now_s: float) -> None:
        self._clock = max(self._clock, self.worth(component, now_s))

    def worth(self, component: Loadable, now_s: float) -> float:
        count, clock = self._uses.get(component.name, (1, self._clock))
        return clock + count * component.density
