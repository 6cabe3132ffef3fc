"""Choose the components that stay on a device without room for all.

A few popular ControlNets serve almost all calls (Katz, section 3.1). The component of least worth leaves first: its
uses, times the seconds that loading it again takes, per byte that it holds. A use counts half after `HALF_LIFE_USES`
further uses of any component, so that a popularity of the past ends. No clock.
"""

from collections.abc import Collection
from dataclasses import dataclass

# As many hits as counting all uses while popularity is constant, and more than LRU or LFU after it has changed
# (benchmarks/controlnet_residency.py runs both logs).
HALF_LIFE_USES = 500
# Weights of uses grow, instead of all counts shrinking at every use; beyond this weight all are divided by it.
_LARGEST_WEIGHT = 1e100


@dataclass(frozen=True)
class Loadable:
    """Describe a component: `memory_bytes` on the device, and the `load_s` seconds that loading takes."""

    name: str
    memory_bytes: int
    load_s: float


class ResidentSet:
    """Track what a device of `budget_bytes` holds, and choose what leaves. The caller loads and frees."""

    def __init__(self, budget_bytes: int, half_life_uses: float = HALF_LIFE_USES) -> None:
        self._budget_bytes = budget_bytes
        self._growth = 2.0 ** (1.0 / half_life_uses)
        self._weight = 1.0
        self._resident: dict[str, Loadable] = {}
        # Includes components that left, since popular ones return.
        self._uses: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the held components, most worth first."""
        return tuple(sorted(self._resident, key=lambda name: (-self._worth(name), name)))

    @property
    def used_bytes(self) -> int:
        """Return the bytes that held components take."""
        return sum(component.memory_bytes for component in self._resident.values())

    def use(self, component: Loadable) -> None:
        """Count a use of a component that is held or is about to be."""
        self._weight *= self._growth
        self._uses[component.name] = self._uses.get(component.name, 0.0) + self._weight
        if component.name in self._resident:
            self._resident[component.name] = component
        if self._weight > _LARGEST_WEIGHT:
            self._uses = {name: uses / self._weight for name, uses in self._uses.items()}
            self._weight = 1.0

    def leaving_for(self, component: Loadable, in_use: Collection[str]) -> tuple[str, ...] | None:
        """Return the components that must leave before `component` fits: the fewest, in order, and none of `in_use`.

        None if it cannot fit now: components in use would have to leave, or it is larger than the budget.
        """
        if component.name in self._resident:
            return ()
        missing = self.used_bytes + component.memory_bytes - self._budget_bytes
        leaving: list[str] = []
        for name in reversed(self.names):
            if missing <= 0:
                break
            if name not in in_use:
                leaving.append(name)
                missing -= self._resident[name].memory_bytes
        return None if missing > 0 else self._without_spares(leaving, missing)

    def add(self, component: Loadable) -> None:
        """Hold a component; if never used, it counts as used once. Raises ValueError if it does not fit."""
        others = self.used_bytes - self._size_of(component.name)
        if others + component.memory_bytes > self._budget_bytes:
            raise ValueError(f"{component.name} does not fit next to the held components")
        self._resident[component.name] = component
        self._uses.setdefault(component.name, self._weight)

    def remove(self, name: str) -> None:
        """Remove a component. Raises KeyError if it is not held."""
        del self._resident[name]

    def _worth(self, name: str) -> float:
        component = self._resident[name]
        return self._uses[name] * component.load_s / max(component.memory_bytes, 1)

    def _without_spares(self, leaving: list[str], missing: int) -> tuple[str, ...]:
        """Return `leaving` without the components that can stay, most worth first, since a large one makes room."""
        spare = -missing
        kept = []
        for name in reversed(leaving):
            size = self._size_of(name)
            if size <= spare:
                spare -= size
                kept.append(name)
        return tuple(name for name in leaving if name not in kept)

    def _size_of(self, name: str) -> int:
        return self._resident[name].memory_bytes if name in self._resident else 0
