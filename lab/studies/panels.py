"""The panels of a study, which the SVG and PNG writers draw."""

from collections.abc import Sequence
from math import log10, nan

from lab.runs.panels import Panel, Series
from lab.studies.reuse import AgePoint
from lab.studies.sessions import QUANTILES
from lab.studies.study import TraceStudy


def study_panels(study: TraceStudy) -> tuple[Panel, ...]:
    """Return the panels of everything that the log allowed to measure."""
    drawn = [
        _hit_rates(study),
        _savings(study),
        _ages(study, study.by_age_prompts, "prompts back, log10"),
        _ages(study, study.by_age_s, "age of the donor in seconds, log10"),
        _longevity(study),
        _sessions(study),
    ]
    return tuple(panel for panel in drawn if panel is not None)


def _hit_rates(study: TraceStudy) -> Panel:
    bounded = [point for point in study.by_size if point.entries is not None]
    x = tuple(log10(point.entries or 1) for point in bounded)
    series = [
        Series(f"similarity >= {rule.min_similarity:g}", x, tuple(point.hit_rates[row] for point in bounded))
        for row, rule in enumerate(study.settings.table)
    ]
    return Panel("Hit rate by cache size (FIFO, all enter)", "entries, log10", "share of prompts", tuple(series))


def _savings(study: TraceStudy) -> Panel:
    bounded = [point for point in study.by_size if point.entries is not None]
    x = tuple(log10(point.entries or 1) for point in bounded)
    lines = {
        "FIFO, all enter": [point.saved_share for point in bounded],
        "no bounds, all enter": [study.ceiling.saved_share] * len(x),
        "no bounds, misses": [study.ceiling.saved_share_misses_only] * len(x),
    }
    if study.ceiling.saved_share_own is not None:
        lines["no bounds, own only"] = [study.ceiling.saved_share_own] * len(x)
    series = tuple(Series(name, x, tuple(values)) for name, values in lines.items())
    return Panel("Steps saved by cache size", "entries, log10", "share of all steps", series)


def _ages(study: TraceStudy, points: Sequence[AgePoint] | None, label: str) -> Panel | None:
    if not points:
        return None
    x = tuple(log10(point.age) for point in points)
    hits = Series("nearest donor of a hit", x, tuple(_drawn(point.donor_share) for point in points))
    rates = [
        Series(f"hit rate, >= {rule.min_similarity:g}", x, tuple(point.hit_rates[row] for point in points))
        for row, rule in enumerate(study.settings.table)
    ]
    return Panel("Reuse by the donor's age", label, "share up to this age", (hits, *rates))


def _longevity(study: TraceStudy) -> Panel | None:
    percent = max(study.settings.top_percents)
    series = []
    for eps in study.settings.eps:
        rows = [row for row in study.longevity if row.eps == eps and row.top_percent == percent]
        if any(row.share is not None for row in rows):
            points = tuple(_drawn(row.share) for row in rows)
            series.append(Series(f"eps {eps:g}", tuple(float(row.lag) for row in rows), points))
    if not series:
        return None
    return Panel(f"Top {percent:g} % of clusters that stay there", "windows later", "share", tuple(series))


def _sessions(study: TraceStudy) -> Panel | None:
    if study.sessions is None:
        return None
    spreads = {
        "within a session": study.sessions.within,
        "between a user's": study.sessions.between,
        "with other users": study.sessions.across,
    }
    series = [Series(name, QUANTILES, spread.quantiles) for name, spread in spreads.items() if spread.quantiles]
    return Panel("Similarity of prompts", "quantile of users", "mean cosine of pairs", tuple(series))


def _drawn(value: float | None) -> float:
    """A line is broken where there is no value."""
    return nan if value is None else value
