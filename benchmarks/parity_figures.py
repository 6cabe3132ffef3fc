"""Compute the results of live runs and of their simulations: by load, by side, with intervals over rounds."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lab.runs import Outcome, Report, RequestRecord, StartKind
from lab.runs.intervals import BOOTSTRAP, bootstrap_interval
from lab.runs.measure import Figure, Interval, Target, at_most, informative

VIOLATIONS = at_most(1.1, "points")
LATENCY = at_most(5.0, "%")
QUALITY = at_most(0.56, "%")
PREDICTED, DIAGNOSED = "predicted", "given the run's stolen time (diagnosis)"

Of = Callable[[Report], float]


@dataclass(frozen=True)
class OutcomeTally:
    """Store the results of one turn's requests, live or in one simulation."""

    violations: int
    counted: int
    latencies_s: NDArray[np.float64]

    @staticmethod
    def of(records: Sequence[RequestRecord]) -> "OutcomeTally":
        answered = [record.latency_s for record in records if record.outcome.answered]
        counted = [record for record in records if record.outcome is not Outcome.CANCELLED]
        return OutcomeTally(sum(record.outcome.violation for record in counted), len(counted), np.array(answered))


Tallies = Sequence[tuple[OutcomeTally, ...]]
"""Turns of one load: the live run, then each simulation of it."""


@dataclass(frozen=True)
class ComparedLoad:
    """Hold one load, live and simulated, over all its turns; differences in points and percent of the live figure."""

    side: str
    rate: float
    live: Report
    simulated: tuple[Report, ...]
    turns: Tallies

    @property
    def violations_points(self) -> float:
        return 100.0 * abs(self.simulated_mean(violations_of) - violations_of(self.live))

    @property
    def quality_percent(self) -> float | None:
        """Return the quality's difference, or None if no scorer ran."""
        return None if math.isnan(self.live.quality) else self.percent(quality_of)

    def percent(self, figure: Of) -> float:
        return 100.0 * abs(self.simulated_mean(figure) / figure(self.live) - 1.0)

    def simulated_mean(self, figure: Of) -> float:
        return statistics.fmean(figure(report) for report in self.simulated)

    def line(self) -> str:
        """Return live figures with the means of the simulated ones and the standard deviation of one simulated run:
        chance moves a live run about as far."""
        names = {"violations": violations_of, "p50": p50_of, "p95": p95_of, "quality": quality_of}
        names |= {"deferred": deferred_of, "from noise": noise_of}
        return f"{self.side}, {self.rate:.2f}/s: " + ", ".join(self._told(*one) for one in names.items())

    def _told(self, name: str, figure: Of) -> str:
        values = [figure(report) for report in self.simulated]
        return f"{name} {figure(self.live):.4g}, simulated {np.mean(values):.4g} ± {np.std(values, ddof=1):.2g}"


def violations_of(report: Report) -> float:
    return report.overall.violation_share


def p50_of(report: Report) -> float:
    return report.overall.latency_s.p50


def p95_of(report: Report) -> float:
    return report.overall.latency_s.p95


def quality_of(report: Report) -> float:
    return report.quality


def deferred_of(report: Report) -> float:
    return report.deferral_share


def noise_of(report: Report) -> float:
    return report.starts.get(StartKind.NOISE, 0.0)


def violations_apart(turns: Tallies) -> float:
    """Return the points between the live share of violations and the mean of the simulated ones."""
    live, *simulated = (
        sum(tally.violations for tally in tallies) / sum(tally.counted for tally in tallies)
        for tallies in zip(*turns, strict=True)
    )
    return 100.0 * abs(statistics.fmean(simulated) - live)


def latencies_apart(percentile: float, turns: Tallies) -> float:
    """Return the percent between the live percentile of the latencies and the mean of the simulated ones."""
    live, *simulated = (
        float(np.percentile(np.concatenate([tally.latencies_s for tally in tallies]), percentile))
        for tallies in zip(*turns, strict=True)
    )
    return 100.0 * abs(statistics.fmean(simulated) / live - 1.0)


def figures(pairs: Sequence[ComparedLoad]) -> list[Figure]:
    """Return figures by side: the mean over its loads if DiffServe gives a mean, the worst load for latencies."""
    found = []
    for side in dict.fromkeys(pair.side for pair in pairs):
        mine = [pair for pair in pairs if pair.side == side]
        violations = [pair.violations_points for pair in mine]
        p50, p95 = (partial(latencies_apart, percentile) for percentile in (50, 95))
        found += [
            figure(mine, "SLO violations, mean", statistics.fmean(violations), VIOLATIONS, violations_apart),
            figure(mine, "SLO violations, worst", max(violations), informative("points")),
            figure(mine, "p50 latency, worst", max(pair.percent(p50_of) for pair in mine), LATENCY, p50),
            figure(mine, "p95 latency, worst", max(pair.percent(p95_of) for pair in mine), LATENCY, p95),
        ]
        qualities = [pair.quality_percent for pair in mine if pair.quality_percent is not None]
        if qualities:
            found.append(figure(mine, "quality, mean", statistics.fmean(qualities), QUALITY))
        deferred = [100.0 * abs(pair.simulated_mean(deferred_of) - deferred_of(pair.live)) for pair in mine]
        if any(deferred):
            found.append(figure(mine, "deferred requests, mean", statistics.fmean(deferred), informative("points")))
    return found


def figure(
    pairs: Sequence[ComparedLoad],
    name: str,
    value: float,
    target: Target,
    apart: Callable[[Tallies], float] | None = None,
) -> Figure:
    """Return a figure over one side's loads; `apart` is the difference of one load, for the interval."""
    side = pairs[0].side
    combine = max if name.endswith("worst") else statistics.fmean
    between = None
    if apart is not None:
        between = interval([pair.turns for pair in pairs], lambda loads: combine([apart(load) for load in loads]))
    return Figure(
        f"{side}: {name}, simulated against live",
        value if math.isfinite(value) else None,
        informative(target.unit) if side.endswith(DIAGNOSED) else target,
        len(pairs),
        between,
    )


def interval(loads: Sequence[Tallies], statistic: Callable[[Sequence[Tallies]], float]) -> Interval | None:
    """Return the statistic's interval by resampling rounds, each with all its loads; None for one round."""
    rounds = list(zip(*loads, strict=True))
    if len(rounds) < 2:
        return None
    low, high = bootstrap_interval(rounds, lambda drawn: statistic(list(zip(*drawn, strict=True))))
    return Interval(low, high, f"{BOOTSTRAP} over rounds")
