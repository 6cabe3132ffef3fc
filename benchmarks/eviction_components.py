"""Compare the loading seconds of eviction rules for base models, LoRAs and ControlNets, in a tier of 8 to 64 GB.

    python -m benchmarks.eviction_components --data DIR

DIR holds `gentd26/requests_timed_first16days.csv.gz`, a production log (15,615 requests; not in the repository). The
second log is drawn from the mix with MLoRA's printed shares, ControlNets and drift. Sizes and load seconds are drawn
(`lab.workloads.components`). Parameters are fitted on the first half of each log, for each size, and every rule is
scored on the second half after it has played the first. Intervals come from blocks of 100 consecutive requests,
resampled with replacement; ratios are taken within blocks.

Ours is Eq. 10 with admission: a component that is worth less than all that would leave for it passes through the tier.
"shipped" is ours with the suite's parameters.
Then what a prefetch foresees: Eq. 5's share of the LoRA uses of the next hour, with the counts of the last 72 hours,
with those of the first half, and by popularity alone; and the loading that Eq. 5 and a bandit save in a tier of 32 GB.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from lab.runs.measure import Figure, Options, at_least, at_most, counted, informative, measured, parse_options, publish
from lab.studies.component_log import SimulatedTier, replay
from lab.studies.component_rules import Gdsf, Lfu, Lru, TimeDecayed
from lab.studies.prefetch import (
    HourlyBandit,
    HourlyTogether,
    Prefetch,
    co_occurring,
    covered_share,
    hours_of,
    replay_with_prefetch,
    uses_together,
)
from lab.workloads.components import GB, ComponentUse, uses_of_choices, uses_of_log
from lab.workloads.production import MLORA_DRIFTING, choose
from lab.workloads.readers import read_production_requests
from pentimento.domain.components import ComponentRule
from pentimento.policies.components import AGING_PER_HOUR, FadingUses, Utility

LOG = "gentd26/requests_timed_first16days.csv.gz"
SIZES_GB = (8, 16, 32, 64)
BLOCK = 100
# The production log's requests an hour.
REQUESTS_PER_HOUR = 48.5
WINDOW_HOURS, THRESHOLD, MOST = 72, 0.15, 8

Uses = Sequence[ComponentUse]
MakeRule = Callable[[], ComponentRule]


@dataclass(frozen=True)
class Contender:
    """Name a rule with the values of its parameter to fit. `selective` as in `SimulatedTier`."""

    name: str
    make: Callable[..., ComponentRule]
    values: tuple[float, ...] = ()
    selective: bool = False

    def made(self) -> list[MakeRule]:
        return [partial(self.make, value) for value in self.values] or [self.make]

    def seconds(self, uses: Uses, make: MakeRule, size_gb: int) -> list[float]:
        """Return the loading seconds of each request."""
        return [one.seconds for one in replay(uses, make(), size_gb * GB, self.selective)]

    def fitted(self, uses: Uses, size_gb: int) -> MakeRule:
        """Return the rule with the fewest loading seconds on these uses."""
        made = self.made()
        return min(made, key=lambda make: sum(self.seconds(uses, make, size_gb))) if len(made) > 1 else made[0]


OURS = Contender("ours", Utility, (10.0, 30.0, 100.0, 200.0, 300.0, 1_000.0), selective=True)
OTHERS = (
    Contender("LRU", Lru),
    Contender("LFU", Lfu),
    Contender("GDSF", Gdsf),
    Contender("Eq. 3", TimeDecayed, (0.01, 0.03, 0.1, 1.0)),
    Contender("Eq. 10", Utility, (1.0, 10.0, 30.0, 100.0, 300.0)),
    Contender("fading uses", FadingUses, (100.0, 500.0, 2_000.0)),
)
SHIPPED = Contender("shipped", Utility, selective=True)


@dataclass(frozen=True)
class Cell:
    """Hold the scored loading seconds by block of one log and size, for each rule."""

    log: str
    size_gb: int
    blocks: Mapping[str, Sequence[float]]

    def total(self, rule: str) -> float:
        return sum(self.blocks[rule])

    @property
    def best_other(self) -> str:
        return min((one.name for one in OTHERS), key=self.total)

    def ratio(self, other: str) -> Figure:
        pairs = list(zip(self.blocks["ours"], self.blocks[other], strict=True))
        return measured(f"{self.log}, {self.size_gb} GB: ours ÷ {other}", pairs, _ratio, informative("of seconds"))

    def figures(self) -> list[Figure]:
        name = f"{self.log}, {self.size_gb} GB: thousand seconds, ours"
        others = dict.fromkeys((self.best_other, "GDSF", "LRU", "shipped"))
        total = Figure(name, self.total("ours") / 1000.0, informative("ks"), len(self.blocks["ours"]))
        return [total, *map(self.ratio, others)]


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)


def cells_of(log: str, uses: Uses) -> list[Cell]:
    """Return the scored cells of a log."""
    half = len(uses) // 2
    cells = []
    for size in SIZES_GB:
        best = {one: one.fitted(uses[:half], size) for one in (OURS, *OTHERS, SHIPPED)}
        print(log, size, {one.name: make.args for one, make in best.items() if isinstance(make, partial)}, flush=True)
        blocks = {one.name: _blocks(one.seconds(uses, make, size)[half:]) for one, make in best.items()}
        cells.append(Cell(log, size, blocks))
    return cells


def _blocks(values: Sequence[float]) -> list[float]:
    return [sum(values[begin : begin + BLOCK]) for begin in range(0, len(values), BLOCK)]


def summary(cells: Sequence[Cell]) -> list[Figure]:
    """Count the cells where ours does not have the fewest seconds: by the figures, and beyond noise."""
    above = [one for one in cells if one.total("ours") > one.total(one.best_other)]
    surely = [one for one in cells if (interval := one.ratio(one.best_other).interval) and interval.low > 1.0]
    unit = f"of {len(cells)}"
    return [
        counted(
            "cells where a rule is better than ours beyond the interval", len(surely), len(cells), at_most(0, unit)
        ),
        counted("cells where ours is not the lowest", len(above), len(cells), at_most(0, unit)),
    ]


def foreseen(log: str, uses: Uses) -> list[Figure]:
    """Return Eq. 5's coverage of the second half, by the counts that it has."""
    hours = hours_of(uses)
    half = len(hours) // 2
    windows = [list(chain.from_iterable(hours[max(at - WINDOW_HOURS, 0) : at])) for at in range(len(hours))]
    refitted = [uses_together(window) for window in windows]
    once = uses_together(chain.from_iterable(hours[:half]))
    popular = [
        [name for name, _ in Counter(o.name for use in window for o in use.components[1:]).most_common(MOST)]
        for window in windows
    ]
    rules: Mapping[str, tuple[Callable[[int, str], Sequence[str]], float | None]] = {
        "Eq. 5 refitted each hour": (lambda at, model: co_occurring(refitted[at], model, THRESHOLD, MOST), 0.3),
        "Eq. 5 fitted once": (lambda at, model: co_occurring(once, model, THRESHOLD, MOST), None),
        f"the {MOST} most used": (lambda at, model: popular[at], None),
    }
    return [
        measured(
            f"{log}: LoRA uses of the next hour foreseen by {name}",
            covered_share(hours, rule)[half:],
            _share,
            at_least(limit, "of uses") if limit and log == "gentd26" else informative("of uses"),
        )
        for name, (rule, limit) in rules.items()
    ]


def _share(hours: Sequence[tuple[int, int]]) -> float:
    return sum(covered for covered, _ in hours) / max(sum(all_uses for _, all_uses in hours), 1)


def prefetched(log: str, uses: Uses) -> list[Figure]:
    """Return what prefetches save of the waiting, and what they load ahead, in a tier of 32 GB."""

    def tier() -> SimulatedTier:
        return SimulatedTier(Utility(), 32 * GB, selective=True)

    plain = [one.seconds for one in map(tier().serve, uses)]
    found = []
    rules: Mapping[str, Prefetch] = {"a bandit": HourlyBandit(), "Eq. 5": HourlyTogether(WINDOW_HOURS, THRESHOLD, MOST)}
    for rule, prefetch in rules.items():
        waited, ahead = replay_with_prefetch(hours_of(uses), tier(), prefetch)
        pairs = list(zip(_blocks([one.seconds for one in waited]), _blocks(plain), strict=True))
        name = f"{log}, 32 GB, {rule}: seconds "
        found.append(measured(f"{name}waited ÷ without", pairs, _ratio, informative()))
        found.append(Figure(f"{name}loaded ahead ÷ without it", ahead.seconds / sum(plain), informative()))
    return found


def logs_of(options: Options) -> dict[str, Uses]:
    count = 2_000 if options.quick else 16_000
    rng = np.random.default_rng(5)
    times_s = np.cumsum(rng.exponential(3600.0 / REQUESTS_PER_HOUR, count))
    production = uses_of_log(read_production_requests(options.rest["data"] / LOG))
    return {
        "gentd26": production[:count],
        "drifting mix": uses_of_choices(choose(MLORA_DRIFTING, count, rng), times_s.tolist()),
    }


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, required=True, help="the folder that holds gentd26/")

    options = parse_options("eviction_components", __doc__, add)
    cells: list[Cell] = []
    more: list[Figure] = []
    for log, uses in logs_of(options).items():
        cells += cells_of(log, uses)
        more += [*foreseen(log, uses), *prefetched(log, uses)]
    notes = {"shipped aging per hour": AGING_PER_HOUR, "block": BLOCK}
    return publish(options, [*summary(cells), *chain.from_iterable(one.figures() for one in cells), *more], notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
