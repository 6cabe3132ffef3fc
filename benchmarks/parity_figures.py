"""Compute the results of live runs and of their simulations: by load, by side, with intervals over rounds."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Figure, Interval, Target, at_most, informative
from benchmarks.statistics import BOOTSTRAP, CONFIDENCE, bootstrap_interval
from lab.runs import Outcome, Report, RequestRecord

VIOLATIONS = at_most(1.1, "points")
LATENCY = at_most(5.0, "%")
QUALITY = at_most(0.56, "%")
PREDICTED, DIAGNOSED = "predicted", "given the run's stolen time (diagnosis)"

Of = Callable[[Report], float]


@dataclass(frozen=True)
class Tally:
    """Store the results of one turn's requests, live or in one simulation."""

    violations: int
    counted: int
    latencies_s: NDArray[np.float64]

    @staticmethod
    def of(records: Sequence[RequestRecord]) -> "Tally":
        answered = [record.latency_s for record in records if record.outcome.answered]
        counted = [record for record in records if record.outcome is not Outcome.CANCELLED]
        return Tally(sum(record.outcome.violation for record in counted), len(counted), np.array(answered))


Tallies = Sequence[tuple[Tally, ...]]
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

    def row(self) -> dict[str, Any]:
        """Return [live, simulated, standard deviation of one simulated run]: chance moves a live run about as far."""
        return {
            "side": self.side,
            "rate_per_s": self.rate,
            "requests": self.live.overall.total,
            "violation_share": self._beside(violations_of),
            "p50_s": self._beside(p50_of),
            "p95_s": self._beside(p95_of),
            "quality": None if self.quality_percent is None else self._beside(quality_of),
            "deferral_share": self._beside(lambda report: report.deferral_share),
            "stages_mean_s": {stage: self._beside(partial(stage_of, stage)) for stage in self._stages()},
        }

    def _stages(self) -> list[str]:
        return list(dict.fromkeys(stage.name for report in (self.live, *self.simulated[:1]) for stage in report.stages))

    def _beside(self, figure: Of) -> list[float | None]:
        values = [figure(report) for report in self.simulated]
        found = [figure(self.live), float(np.mean(values)), float(np.std(values, ddof=1))]
        return [round(value, 5) if math.isfinite(value) else None for value in found]


def violations_of(report: Report) -> float:
    return report.overall.violation_share


def p50_of(report: Report) -> float:
    return report.overall.latency_s.p50


def p95_of(report: Report) -> float:
    return report.overall.latency_s.p95


def quality_of(report: Report) -> float:
    return report.quality


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


def stage_of(name: str, report: Report) -> float:
    """Return the mean seconds of requests in the stage."""
    return next((stage.seconds.mean for stage in report.stages if stage.name == name), math.nan)


def figures(pairs: Sequence[ComparedLoad]) -> list[Figure]:
    """Return figures by side: the mean over its loads if DiffServe gives a mean, the worst load for latencies."""
    found = []
    for side in dict.fromkeys(pair.side for pair in pairs):
        mine = [pair for pair in pairs if pair.side == side]
        rows = [pair.row() for pair in mine]
        violations = [pair.violations_points for pair in mine]
        p50, p95 = (partial(latencies_apart, percentile) for percentile in (50, 95))
        found += [
            figure(mine, "SLO violations, mean", statistics.fmean(violations), VIOLATIONS, rows, violations_apart),
            figure(mine, "SLO violations, worst", max(violations), informative("points"), rows),
            figure(mine, "p50 latency, worst", max(pair.percent(p50_of) for pair in mine), LATENCY, rows, p50),
            figure(mine, "p95 latency, worst", max(pair.percent(p95_of) for pair in mine), LATENCY, rows, p95),
        ]
        qualities = [pair.quality_percent for pair in mine if pair.quality_percent is not None]
        if qualities:
            found.append(figure(mine, "quality, mean", statistics.fmean(qualities), QUALITY, rows))
    return found


def figure(
    pairs: Sequence[ComparedLoad],
    name: str,
    value: float,
    target: Target,
    rows: Sequence[Any],
    apart: Callable[[Tallies], float] | None = None,
) -> Figure:
    """Return a figure over one side's loads; `apart` is the difference of one load, for the interval."""
    side = pairs[0].side
    combine = max if name.endswith("worst") else statistics.fmean
    return Figure(
        f"{side}: {name}, simulated against live",
        value if math.isfinite(value) else None,
        informative(target.unit) if side.endswith(DIAGNOSED) else target,
        rows,
        None
        if apart is None
        else interval([pair.turns for pair in pairs], lambda loads: combine([apart(load) for load in loads])),
    )


def interval(loads: Sequence[Tallies], statistic: Callable[[Sequence[Tallies]], float]) -> Interval | None:
    """Return the statistic's interval by resampling rounds, each with all its loads; None for one round."""
    rounds = list(zip(*loads, strict=True))
    if len(rounds) < 2:
        return None
    low, high = bootstrap_interval(rounds, lambda drawn: statistic(list(zip(*drawn, strict=True))))
    return Interval(low, high, CONFIDENCE, f"{BOOTSTRAP} over rounds")
