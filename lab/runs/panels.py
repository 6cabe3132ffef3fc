"""The panels of reports, which `svg` and `png` draw."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.runs.figures import Window
from lab.runs.report import Report

POINTS = 200


@dataclass(frozen=True)
class Series:
    """A line; points with a NaN y break it."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Bar:
    """One run's stages: (name, mean seconds an answered request), one after the other."""

    name: str
    parts: tuple[tuple[str, float], ...]


def panels(reports: Sequence[Report]) -> tuple[Panel, ...]:
    """Latencies, goodput, violations and, where anything was measured, quality."""
    drawn = [
        Panel("Latency", "seconds", "share answered within", tuple(_latencies(report) for report in reports)),
        _over_time(reports, "Goodput", "answers in time / s", lambda window: window.in_time / window.length_s),
        _over_time(reports, "Violations", "share of arrivals", lambda window: window.violation_share),
        _over_time(reports, "Quality", "mean", lambda window: window.quality),
    ]
    return tuple(
        panel for panel in drawn if not all(math.isnan(value) for series in panel.series for value in series.y)
    )


def bars(reports: Sequence[Report]) -> tuple[Bar, ...]:
    """The waterfalls, in seconds of an average answered request."""
    return tuple(
        Bar(report.name, tuple((stage.name, stage.share * report.overall.latency_s.mean) for stage in report.stages))
        for report in reports
        if report.stages
    )


def _latencies(report: Report) -> Series:
    """Return the empirical distribution over all scored requests; unanswered ones keep it below 1."""
    latencies = report.latencies_s
    stride = max(1, len(latencies) // POINTS)
    ranks = [*range(0, len(latencies), stride), len(latencies) - 1] if latencies else []
    counted = max(1, report.overall.counted)
    return Series(report.name, tuple(latencies[rank] for rank in ranks), tuple((rank + 1) / counted for rank in ranks))


def _over_time(reports: Sequence[Report], title: str, label: str, value: Callable[[Window], float]) -> Panel:
    return Panel(
        title,
        "seconds of the run",
        label,
        tuple(
            Series(
                report.name,
                tuple(window.from_s + window.length_s / 2 for window in report.timeline),
                tuple(value(window) for window in report.timeline),
            )
            for report in reports
        ),
    )
