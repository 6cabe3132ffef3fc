"""Which components stay on a device whose memory does not hold all of them (Katz, section 5: a few popular ControlNets
serve almost all calls).

Each component has a worth, and the one of least worth leaves first (Cao and Irani 1997; Cherkasova 1998, greedy dual
size frequency): its uses, times the seconds that loading it again would take, for each byte that it holds, on top of
the worth of what left last. That last term lets what was popular long ago go: whatever is used anew starts above it. No
clock.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Loadable:
    """A component: the bytes that it takes on the device, and the seconds that loading it takes."""

    name: str
    memory_bytes: int
    load_s: float


class ResidentSet:
    """The components that a device of `budget_bytes` holds. Says which leave; loading and freeing is the caller's."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._resident: dict[str, Loadable] = {}
        self._worth: dict[str, float] = {}
        # Of components that left, too: the popular ones come back.
        self._uses: dict[str, int] = {}
        self._floor = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """What is held, that of most worth first."""
        return tuple(sorted(self._resident, key=lambda name: (-self._worth[name], name)))

    @property
    def used_bytes(self) -> int:
        """What is held takes so many."""
        return sum(component.memory_bytes for component in self._resident.values())

    def use(self, component: Loadable) -> None:
        """Count a use, of one that is held or is about to be."""
        self._uses[component.name] = self._uses.get(component.name, 0) + 1
        if component.name in self._resident:
            self._value(component)

    def leaving_for(self, component: Loadable, in_use: Collection[str]) -> tuple[str, ...] | None:
        """Return what has to leave before `component` fits, in order, the least that is enough; nothing of `in_use`.
        None where it cannot fit now: what is in use would have to leave, or it is larger than the budget."""
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
        """Hold it. Raises ValueError where it does not fit."""
        others = self.used_bytes - self._size_of(component.name)
        if others + component.memory_bytes > self._budget_bytes:
            raise ValueError(f"{component.name} does not fit beside what is held")
        self._resident[component.name] = component
        self._value(component)

    def remove(self, name: str) -> None:
        """Hold it no more. Raises KeyError where it is not held."""
        del self._resident[name]
        self._floor = max(self._floor, self._worth.pop(name))

    def _value(self, component: Loadable) -> None:
        uses = max(self._uses.get(component.name, 0), 1)
        self._worth[component.name] = self._floor + uses * component.load_s / max(component.memory_bytes, 1)

    def _without_spares(self, leaving: list[str], missing: int) -> tuple[str, ...]:
        """A large one may make room enough for those that would have left before it: they stay, the worthiest first."""
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
