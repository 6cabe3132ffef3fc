"""Prefetch ahead of requests: how much of the next hour's use a rule foresees, and which loads it saves.

MLoRA's Eq. 5 chooses LoRAs of a base model (section 6.1.2): at most `most`, each used with it more often than
`threshold` times the most used one. The bandit is its way to choose among warm components (section 6.1.1): UCB1 on
whether a component is used within the hour, times its load seconds. Both load at the begin of an hour.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import log, sqrt
from typing import Protocol

from lab.studies.component_log import Loading, SimulatedTier
from lab.workloads.components import ComponentUse
from pentimento.domain.components import Loadable

HOUR_S = 3600.0
Hour = Sequence[ComponentUse]
Together = Mapping[str, Mapping[str, float]]
"""Uses of LoRAs by base model."""


def hours_of(uses: Sequence[ComponentUse]) -> list[Hour]:
    """Return the uses by hour, hours without uses left out."""
    return [list(hour) for _, hour in groupby(uses, key=lambda use: int(use.at_s // HOUR_S))]


def uses_together(uses: Iterator[ComponentUse] | Sequence[ComponentUse]) -> Together:
    """Count the LoRAs by base model: a request's first component is its base model."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for use in uses:
        model, *others = use.components
        counts[model.name].update(other.name for other in others)
    return counts


def co_occurring(together: Together, model: str, threshold: float, most: int) -> tuple[str, ...]:
    """Return Eq. 5's LoRAs for a base model, most used first."""
    found = together.get(model, {})
    least = threshold * max(found.values(), default=0.0)
    chosen = sorted((name for name, uses in found.items() if uses > least), key=lambda name: (-found[name], name))
    return tuple(chosen[:most])


def covered_share(hours: Sequence[Hour], foreseen: Callable[[int, str], Sequence[str]]) -> list[tuple[int, int]]:
    """Return by hour the LoRA uses that `foreseen(hour, model)` has, and all."""
    shares = []
    for place, hour in enumerate(hours):
        used = [(use.components[0].name, other.name) for use in hour for other in use.components[1:]]
        shares.append((sum(lora in foreseen(place, model) for model, lora in used), len(used)))
    return shares


class Prefetch(Protocol):
    """Choose components to load ahead of the next hour."""

    def choose(self, held: Collection[str]) -> list[Loadable]:
        """Return the components to load, the most wanted first, none of `held`."""

    def learn(self, hour: Hour) -> None:
        """Learn an hour's uses."""


@dataclass
class HourlyBandit:
    """Choose warm components, of rank 5 to 30 % by uses so far, at most `most`, by UCB1; `explore` is its weight of
    uncertainty."""

    most: int = 4
    explore: float = 0.3
    rounds: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    _known: dict[str, Loadable] = field(default_factory=dict)
    _chosen: Sequence[str] = ()

    def choose(self, held: Collection[str]) -> list[Loadable]:
        self.rounds += 1
        ranked = [name for name, _ in self.counts.most_common()]
        warm = [name for name in ranked[len(ranked) // 20 : len(ranked) * 3 // 10] if name not in held]
        ordered = sorted(
            (self._known[name] for name in warm), key=lambda one: (-self._bound(one.name) * one.load_s, one.name)
        )
        self._chosen = [one.name for one in ordered[: self.most]]
        self.tried.update(self._chosen)
        return ordered[: self.most]

    def learn(self, hour: Hour) -> None:
        of_hour = [one for use in hour for one in use.components]
        self._known |= {one.name: one for one in of_hour}
        self.counts.update(one.name for one in of_hour)
        names = {one.name for one in of_hour}
        self.used.update(name for name in self._chosen if name in names)

    def _bound(self, name: str) -> float:
        tried = self.tried[name]
        if not tried:
            return 1.0
        return self.used[name] / tried + self.explore * sqrt(log(self.rounds) / tried)


@dataclass
class HourlyTogether:
    """Choose Eq. 5's LoRAs of the base models that the tier holds, by the uses of the last `hours` hours."""

    hours: int = 72
    threshold: float = 0.15
    most: int = 8
    _window: deque[Hour] = field(default_factory=deque)
    _known: dict[str, Loadable] = field(default_factory=dict)

    def choose(self, held: Collection[str]) -> list[Loadable]:
        together = uses_together(chain.from_iterable(self._window))
        models = sorted(name for name in held if name in together)
        wanted = [name for model in models for name in co_occurring(together, model, self.threshold, self.most)]
        return [self._known[name] for name in dict.fromkeys(wanted) if name not in held]

    def learn(self, hour: Hour) -> None:
        self._known |= {one.name: one for use in hour for one in use.components}
        self._window.append(hour)
        while len(self._window) > self.hours:
            self._window.popleft()


def replay_with_prefetch(
    hours: Sequence[Hour], tier: SimulatedTier, prefetch: Prefetch
) -> tuple[list[Loading], Loading]:
    """Return the loading that requests waited for, and that of the prefetches, which no request waits for."""
    waited: list[Loading] = []
    seconds, moved = 0.0, 0
    for hour in hours:
        for one in prefetch.choose(tier.held):
            tier.add(one, hour[0].at_s, ())
            seconds, moved = seconds + one.load_s, moved + one.memory_bytes
        waited += [tier.serve(use) for use in hour]
        prefetch.learn(hour)
    return waited, Loading(seconds, moved)
