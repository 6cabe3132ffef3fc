"""Rank components for eviction (`domain.components`): the rules that a tier can have.

Rules that lost on recorded traces are in `lab.studies.component_rules`, with the figures in
`benchmarks/eviction_components.py`.
"""

from dataclasses import dataclass

from pentimento.domain.components import Loadable

# Uses of components that left are remembered, since popular ones return; the oldest names beyond this are forgotten.
MOST_REMEMBERED = 100_000
# As many hits as counting all uses while popularity is constant, and more than LRU or LFU after it has changed
# (benchmarks/controlnet_residency.py runs both logs).
HALF_LIFE_USES = 500
# Fewest loading seconds on the first half of a production log (benchmarks/eviction_components.py).
AGING_PER_HOUR = 100.0
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


@dataclass(slots=True)
class _Used:
    count: int
    last_s: float


class Utility:
    """Rank by MLoRA's Eq. 10: uses, times load seconds per byte, over 1 + beta times the time since the last use.

    The paper gives no estimate of P_reuse: the number of uses takes its place. `aging_per_hour` is beta; a component of
    ten uses is worth as much as one that was used just now once it has waited for 10 / beta hours.
    """

    def __init__(self, aging_per_hour: float = AGING_PER_HOUR) -> None:
        self._aging_per_s = aging_per_hour / 3600.0
        # The least recently used first.
        self._uses: dict[str, _Used] = {}

    def note_use(self, component: Loadable, now_s: float) -> None:
        """Count a use."""
        used = self._uses.pop(component.name, None) or _Used(0, now_s)
        self._uses[component.name] = _Used(used.count + 1, now_s)
        if len(self._uses) > MOST_REMEMBERED:
            del self._uses[next(iter(self._uses))]

    def note_eviction(self, component: Loadable, now_s: float) -> None:
        """Do nothing: worth falls with time."""

    def worth(self, component: Loadable, now_s: float) -> float:
        """Return Eq. 10; a component without uses counts as used once, now."""
        used = self._uses.get(component.name)
        if used is None:
            return component.density
        return used.count * component.density / (1.0 + self._aging_per_s * max(now_s - used.last_s, 0.0))
