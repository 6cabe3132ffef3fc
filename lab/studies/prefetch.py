"""Prefetch ahead of requests: how much of the next hour's use a rule foresees, and which loads it saves.

MLoRA's Eq. 5 chooses LoRAs of a base model (section 6.1.2): at most `most`, each used with it more often than
`threshold` times the most used one. The bandit is its way to choose among warm components (section 6.1.1): UCB1 on
whether a component is used within the hour, times its load seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import log, sqrt

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


@dataclass
class HourlyBandit:
    """Choose warm components to load for the next hour, at most `most`; `explore` is UCB1's weight of uncertainty."""

    most: int = 4
    explore: float = 0.3
    rounds: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)

    def choose(self, warm: Sequence[Loadable]) -> list[Loadable]:
        self.rounds += 1
        chosen = sorted(warm, key=lambda one: (-self._bound(one.name) * one.load_s, one.name))[: self.most]
        self.tried.update(one.name for one in chosen)
        return chosen

    def learn(self, chosen: Sequence[Loadable], used: set[str]) -> None:
        self.used.update(one.name for one in chosen if one.name in used)

    def _bound(self, name: str) -> float:
        tried = self.tried[name]
        if not tried:
            return 1.0
        return self.used[name] / tried + self.explore * sqrt(log(self.rounds) / tried)


def replay_with_bandit(
    hours: Sequence[Hour], tier: SimulatedTier, bandit: HourlyBandit
) -> tuple[list[Loading], Loading]:
    """Return the loading that requests waited for, and that of the prefetches, which no request waits for. Warm are
    the components of rank 5 to 30 % by uses so far that the tier does not hold."""
    counts: Counter[str] = Counter()
    known: dict[str, Loadable] = {}
    waited: list[Loading] = []
    seconds, moved = 0.0, 0
    for hour in hours:
        ranked = [name for name, _ in counts.most_common()]
        warm = ranked[len(ranked) // 20 : len(ranked) * 3 // 10]
        chosen = bandit.choose([known[name] for name in warm if name not in tier.held])
        for one in chosen:
            tier.add(one, hour[0].at_s, ())
            seconds, moved = seconds + one.load_s, moved + one.memory_bytes
        waited += [tier.serve(use) for use in hour]
        used = [one for use in hour for one in use.components]
        known |= {one.name: one for one in used}
        counts.update(one.name for one in used)
        bandit.learn(chosen, {one.name for one in used})
    return waited, Loading(seconds, moved)
