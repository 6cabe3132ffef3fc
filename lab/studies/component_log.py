"""Replay a log of components through a tier: which loads a rule causes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.workloads.components import ComponentUse
from pentimento.domain.components import ComponentRule, Loadable, victims


@dataclass(frozen=True)
class Loading:
    """Hold the loads that a request caused: seconds, and bytes."""

    seconds: float = 0.0
    moved_bytes: int = 0


def replay(
    uses: Iterable[ComponentUse], rule: ComponentRule, budget_bytes: int, selective: bool = False
) -> list[Loading]:
    """Return the loading of each request in a tier of `budget_bytes` under the rule."""
    tier = SimulatedTier(rule, budget_bytes, selective)
    return [tier.serve(use) for use in uses]


def admits(rule: ComponentRule, newcomer: Loadable, leaving: Iterable[Loadable], now_s: float) -> bool:
    """Return whether keeping the newcomer, a use of it included, is worth more than keeping all that would leave. If
    not, it should pass through the tier without staying there."""
    lost = sum(rule.worth(one, now_s) * one.memory_bytes for one in leaving)
    return lost <= rule.worth(newcomer, now_s) * newcomer.memory_bytes


class SimulatedTier:
    """Hold components under a rule. A component larger than the tier passes through it; with `selective`, so does one
    that is worth less than all that would leave for it."""

    def __init__(self, rule: ComponentRule, budget_bytes: int, selective: bool = False) -> None:
        self._rule = rule
        self._selective = selective
        self._budget_bytes = budget_bytes
        self._held_bytes = 0
        self.held: dict[str, Loadable] = {}

    def serve(self, use: ComponentUse) -> Loading:
        """Count the uses and load the absent components."""
        seconds, moved = 0.0, 0
        names = [one.name for one in use.components]
        for one in use.components:
            self._rule.note_use(one, use.at_s)
        for one in use.components:
            if one.name not in self.held:
                self.add(one, use.at_s, names)
                seconds += one.load_s
                moved += one.memory_bytes
        return Loading(seconds, moved)

    def add(self, component: Loadable, now_s: float, kept: Sequence[str]) -> None:
        """Hold a component, evicting others; without room next to `kept` it is not held."""
        missing = self._held_bytes + component.memory_bytes - self._budget_bytes
        leaving = victims(self._rule, self.held.values(), missing, now_s, kept)
        if leaving is None:
            return
        if self._selective and not admits(self._rule, component, [self.held[name] for name in leaving], now_s):
            return
        for name in leaving:
            evicted = self.held.pop(name)
            self._held_bytes -= evicted.memory_bytes
            self._rule.note_eviction(evicted, now_s)
        self.held[component.name] = component
        self._held_bytes += component.memory_bytes
