"""Compare the denoising steps that each eviction rule saves on a real log of prompts, at five cache sizes.

    python -m benchmarks.eviction --data DIR

DIR holds `prompts/diffusiondb_2m_first3500.txt.gz` (CC0) and its MiniLM embeddings. The rules are the serving code's;
the thresholds are NIRVANA's for N = 50. Ours is tuned on the first half of the log, over the grid below, and every rule
is scored on the second half after playing the first. Sizes count latents; a run captures five.

There are three regimes: the paper's (only misses add latents, the nearest entry serves), refined hits add theirs too,
and the best of the four nearest entries serves. `eviction_bound` gives an upper bound for any rule. Intervals come from
blocks of consecutive requests, resampled with replacement; differences are taken within blocks.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.eviction_bound import offline_bound
from benchmarks.eviction_replay import REGIMES, STEP_COUNT, Regime, ReuseLog, block_means, read_log, replay
from lab.runs.measure import Figure, at_least, at_most, counted, informative, measured, parse_options, publish
from lab.simulator.eviction import EvictionQueue, open_eviction
from pentimento.domain.access import EvictionRule
from pentimento.policies.eviction_rules import (
    AGED_WHERE_ALL_ADD,
    AGED_WHERE_MISSES_ADD,
    AgedBenefit,
    LcbfuRule,
    eviction_rule,
)

SIZES = (125, 250, 500, 1_000, 2_000)
FOUR = ("fifo", "lru", "lfu", "lcbfu")
BLOCK = 50
GRID: Mapping[str, Sequence[float]] = {
    "memory_share": (2.0, 3.0, 5.0),
    "density_weight": (0.0, 1.0, 1.5),
    "use_weight": (0.25, 0.5),
    "beside_share": (0.0, 0.3),
}
QUICK_GRID: Mapping[str, Sequence[float]] = {name: values[:1] for name, values in GRID.items()}
# bounds closer than this are equal, in steps of the whole half
_SAME = 1e-3


@dataclass(frozen=True)
class PlayedRule:
    """Store the scored requests of one regime and size: a share of steps saved by block, for each rule."""

    regime: Regime
    size: int
    blocks: Mapping[str, Sequence[float]]
    bound: float

    def mean(self, rule: str) -> float:
        return statistics.fmean(self.blocks[rule])

    @property
    def best_of_four(self) -> str:
        return max(FOUR, key=self.mean)

    def name(self, what: str) -> str:
        return f"{self.regime.name}, {self.size} latents: {what}"

    def difference(self, other: str) -> Figure:
        pairs = list(zip(self.blocks["ours"], self.blocks[other], strict=True))
        return measured(self.name(f"ours - {other}"), pairs, _difference, informative("of all steps"))

    def figures(self) -> Iterable[Figure]:
        for rule in self.blocks:
            yield measured(self.name(rule), self.blocks[rule], statistics.fmean, informative("of all steps"))
        yield measured(
            self.name("ours ÷ offline bound"),
            self.blocks["ours"],
            lambda blocks: statistics.fmean(blocks) / self.bound,
            at_least(0.9),
        )
        yield self.difference("fifo")
        if self.best_of_four != "fifo":
            yield self.difference(self.best_of_four)


def _difference(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.fmean(ours - theirs for ours, theirs in pairs)


def saved_share(log: ReuseLog, rule: EvictionRule, regime: Regime, size: int, begin: int, end: int) -> list[float]:
    """Return the share for each request from `begin` to `end`, after playing those before."""
    return [steps / STEP_COUNT for steps in replay(log, EvictionQueue(rule), regime, size, end)[begin:]]


def tune(log: ReuseLog, regime: Regime, grid: Mapping[str, Sequence[float]], end: int) -> dict[str, float]:
    """Return the parameters under which the first `end` requests save most, by the mean over sizes of the savings ÷ the
    best of the four rules' savings."""
    best = {size: max(_mean_of_named(log, name, regime, size, end) for name in FOUR) for size in SIZES}

    def gain(parameters: Mapping[str, float]) -> float:
        return statistics.fmean(
            statistics.fmean(saved_share(log, AgedBenefit(size, **parameters), regime, size, 0, end)) / best[size]
            for size in SIZES
        )

    return max((dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())), key=gain)


def _mean_of_named(log: ReuseLog, name: str, regime: Regime, size: int, end: int) -> float:
    return statistics.fmean(replay(log, open_eviction(name, size), regime, size, end))


def bounds(log: ReuseLog, regime: Regime, begin: int) -> dict[int, float]:
    """Return the bound at each size, in steps. It rises with the size up to the limit of an unlimited cache; from there
    on, nothing more is solved."""
    found: dict[int, float] = {}
    ceiling = _unlimited(log, begin) if regime.hits_add else offline_bound(log, begin, SIZES[-1], regime)
    for size in SIZES:
        is_there = bool(found) and ceiling - max(found.values()) <= _SAME
        found[size] = ceiling if is_there else min(offline_bound(log, begin, size, regime), ceiling)
        print(f"{regime.name}, {size} latents: bound {found[size]:.3f} steps", flush=True)
    return found


def _unlimited(log: ReuseLog, begin: int) -> float:
    """Return each request at the most that any earlier one allows."""
    return float(sum(max((allowed for _, allowed in donors), default=0) for donors in log.donors[begin:]))


def shipped(regime: Regime) -> Mapping[str, float]:
    return AGED_WHERE_ALL_ADD if regime.hits_add else AGED_WHERE_MISSES_ADD


def play(log: ReuseLog, regime: Regime, begin: int, bound_of: Mapping[int, float]) -> Iterable[PlayedRule]:
    for size in SIZES:
        rules: dict[str, EvictionRule] = {"ours": AgedBenefit(size, **shipped(regime))}
        rules |= {name: eviction_rule(name, size) for name in FOUR}
        rules["lcbfu, first f = 0"] = LcbfuRule(first_frequency=0.0)
        saved = {name: saved_share(log, rule, regime, size, begin, len(log)) for name, rule in rules.items()}
        blocks = {name: block_means(shares, BLOCK) for name, shares in saved.items()}
        yield PlayedRule(regime, size, blocks, bound_of[size] / STEP_COUNT / (len(log) - begin))


def summary(all_played: Sequence[PlayedRule]) -> list[Figure]:
    """Count how often ours loses. Beyond the interval: the whole interval of the paired difference is below zero."""
    below = [one for one in all_played if (interval := one.difference(one.best_of_four).interval) and interval.high < 0]
    not_above = [one for one in all_played if one.mean("ours") <= one.mean("fifo")]
    count = len(all_played)
    return [
        counted(
            "cells where ours is below the best of the four beyond the interval",
            len(below),
            count,
            at_most(0, f"of {count}"),
        ),
        counted("cells where ours is not above FIFO", len(not_above), count, at_most(0, f"of {count}")),
    ]


def main() -> int:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, required=True, help="the folder that holds prompts/")

    options = parse_options("eviction", __doc__, add)
    log = read_log(options.rest["data"])
    begin = len(log) // 2
    grid = QUICK_GRID if options.quick else GRID
    all_played: list[PlayedRule] = []
    bound_of: dict[bool, dict[int, float]] = {}
    for regime in REGIMES:
        found = tune(log, regime, grid, begin)
        print(f"{regime.name}: the grid's best {found}, shipped {dict(shipped(regime))}", flush=True)
        if regime.hits_add not in bound_of:
            bound_of[regime.hits_add] = bounds(log, regime, begin)
        all_played += play(log, regime, begin, bound_of[regime.hits_add])
    figures = summary(all_played) + [figure for one in all_played for figure in one.figures()]
    return publish(options, figures, notes={"requests": len(log), "tuned_on_the_first": begin})


if __name__ == "__main__":
    raise SystemExit(main())
