"""Choose the components that stay on a device without room for all.

A few popular ControlNets serve almost all calls (Katz, section 3.1). The component of least worth leaves first; the
rule is one of `policies.components`, without a clock.
"""

from collections.abc import Collection

from pentimento.domain.components import Loadable, victims
from pentimento.policies.components import FadingUses


class ResidentSet:
    """Track what a device of `budget_bytes` holds, and choose what leaves. The caller loads and frees."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._rule = FadingUses()
        self._resident: dict[str, Loadable] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the held components, most worth first."""
        held = sorted(self._resident.values(), key=lambda one: (-self._rule.worth(one, 0.0), one.name))
        return tuple(one.name for one in held)

    @property
    def used_bytes(self) -> int:
        """Return the bytes that held components take."""
        return sum(component.memory_bytes for component in self._resident.values())

    def use(self, component: Loadable) -> None:
        """Count a use of a component that is held or is about to be."""
        self._rule.note_use(component, 0.0)
        if component.name in self._resident:
            self._resident[component.name] = component

    def leaving_for(self, component: Loadable, in_use: Collection[str]) -> tuple[str, ...] | None:
        """Return the components that must leave before `component` fits: the fewest, in order, and none of `in_use`.

        None if it cannot fit now: components in use would have to leave, or it is larger than the budget.
        """
        if component.name in self._resident:
            return ()
        missing = self.used_bytes + component.memory_bytes - self._budget_bytes
        return victims(self._rule, self._resident.values(), missing, 0.0, in_use)

    def add(self, component: Loadable) -> None:
        """Hold a component. Raises ValueError if it does not fit."""
        held = self._resident.get(component.name)
        others = self.used_bytes - (held.memory_bytes if held else 0)
        if others + component.memory_bytes > self._budget_bytes:
            raise ValueError(f"{component.name} does not fit next to the held components")
        self._resident[component.name] = component

    def remove(self, name: str) -> None:
        """Remove a component. Raises KeyError if it is not held."""
        del self._resident[name]
