"""Rank components for eviction (`domain.components`): the rules that a tier can have.

Rules that lost on recorded traces are in `lab.studies.component_rules`, with the figures in
`benchmarks/eviction_components.py`.
"""

from pentimento.domain.components import Loadable

# Uses of components that left are remembered, since popular ones return; the oldest names beyond this are forgotten.
MOST_REMEMBERED = 100_000
# As many hits as counting all uses while popularity is constant, and more than LRU or LFU after it has changed
# (benchmarks/controlnet_residency.py runs both logs).
HALF_LIFE_USES = 500
# Weights of uses grow at every use; beyond this weight all are divided by it.
_LARGEST_WEIGHT = 1e100


class FadingUses:
    """Rank by uses, times load seconds per byte. A use counts half after `half_life_uses` further uses of any
    component, so that a popularity of the past ends. No clock."""

    def __init__(self, half_life_uses: float = HALF_LIFE_USES) -> None:
        self._growth = 2.0 ** (1.0 / half_life_uses)
        self._weight = 1.0
        # Faded uses by name; the least recently used first.
        self._uses: dict[str, float] = {}

    def note_use(self, component: Loadable, now_s: float) -> None:
        """Count a use; its weight grows, instead of all counts shrinking."""
        self._weight *= self._growth
        self._uses[component.name] = self._uses.pop(component.name, 0.0) + self._weight
        if len(self._uses) > MOST_REMEMBERED:
            del self._uses[next(iter(self._uses))]
        if self._weight > _LARGEST_WEIGHT:
            self._uses = {name: uses / self._weight for name, uses in self._uses.items()}
            self._weight = 1.0

    def note_eviction(self, component: Loadable, now_s: float) -> None:
        """Do nothing: uses fade by themselves."""

    def worth(self, component: Loadable, now_s: float) -> float:
        """Return faded uses times density; a component without uses counts as used once, now."""
        return self._uses.get(component.name, self._weight) / self._weight * component.density


class Gdsf:
    """Rank by GreedyDual-Size-Frequency (Cherkasova, 1998): uses, times load seconds per byte, plus a clock that rises
    to the worth of each evicted component, so that components without further uses fall behind."""

    def __init__(self) -> None:
        self._clock = 0.0
        # Uses, and the clock at the last one, by name; the least recently used first.
        self._uses: dict[str, tuple[int, float]] = {}

    def note_use(self, component: Loadable, now_s: float) -> None:
        """Count a use; it raises the component to the present clock."""
        count, _ = self._uses.pop(component.name, (0, 0.0))
        self._uses[component.name] = (count + 1, self._clock)
        if len(self._uses) > MOST_REMEMBERED:
            del self._uses[next(iter(self._uses))]

    def note_eviction(self, component: Loadable, now_s: float) -> None:
        """Raise the clock to the component's worth."""
        self._clock = max(self._clock, self.worth(component, now_s))

    def worth(self, component: Loadable, now_s: float) -> float:
        """Return clock plus uses times density, in seconds per byte; a component without uses counts as used once."""
        count, clock = self._uses.get(component.name, (1, self._clock))
        return clock + count * component.density
