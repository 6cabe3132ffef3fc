"""Reports as text: one run, or several side by side."""

import math
from collections.abc import Callable, Sequence

from lab.runs.figures import Attainment
from lab.runs.record import Outcome, StartKind
from lab.runs.report import Report, told_apart

Row = tuple[str, ...]


def as_text(reports: Sequence[Report]) -> str:
    """Return a column per run: requests and answers, SLO by class, time by stage."""
    reports = told_apart(reports)
    tables = [table(rows) for rows in (summary_rows(reports), class_rows(reports), stage_rows(reports)) if rows]
    return "\n".join(tables)


def summary_rows(reports: Sequence[Report]) -> list[Row]:
    columns: list[tuple[str, Callable[[Report], str]]] = [
        ("kind", lambda report: str(report.provenance.get("kind", "?"))),
        ("requests", lambda report: str(report.overall.total)),
        ("duration s", lambda report: number(report.duration_s)),
        ("throughput /s", lambda report: number(report.throughput)),
        ("goodput /s", lambda report: number(report.goodput)),
        ("SLO attainment", lambda report: share(report.overall.slo_attainment)),
        ("violations", lambda report: violations(report.overall)),
        ("latency p50 s", lambda report: number(report.overall.latency_s.p50)),
        ("latency p95 s", lambda report: number(report.overall.latency_s.p95)),
        ("latency p99 s", lambda report: number(report.overall.latency_s.p99)),
        ("quality", lambda report: number(report.quality)),
        ("steps saved", lambda report: share(report.steps_saved)),
        ("starts", starts),
        ("deferred", lambda report: share(report.deferral_share)),
        ("device s an answer", lambda report: number(report.device_s_per_answer)),
        ("Jain, tenants", lambda report: number(report.jain)),
    ]
    head = ("", *(report.name for report in reports))
    return [head, *((name, *(shown(report) for report in reports)) for name, shown in columns)]


def class_rows(reports: Sequence[Report]) -> list[Row]:
    """Attainment, violations and p95 of every SLO class."""
    names = sorted({name for report in reports for name in report.classes})
    rows: list[Row] = [("SLO class", *(report.name for report in reports))]
    for name in names:
        found = [report.classes.get(name, Attainment.of(())) for report in reports]
        rows.append((name, *(f"{share(one.slo_attainment)} of {one.counted}" for one in found)))
        rows.append(("  violations", *(violations(one) for one in found)))
        rows.append(("  p95 s", *(number(one.latency_s.p95) for one in found)))
    return rows if names else []


def stage_rows(reports: Sequence[Report]) -> list[Row]:
    """Mean seconds of a stage and its share of all time."""
    names = list(dict.fromkeys(stage.name for report in reports for stage in report.stages))
    rows: list[Row] = [("stage: mean s, share", *(report.name for report in reports))]
    for name in names:
        cells = []
        for report in reports:
            stage = next((stage for stage in report.stages if stage.name == name), None)
            cells.append("–" if stage is None else f"{number(stage.seconds.mean)}  {share(stage.share)}")
        rows.append((name, *cells))
    return rows if names else []


def violations(attainment: Attainment) -> str:
    parts = [
        f"{attainment.counts[outcome]} {outcome}"
        for outcome in Outcome
        if outcome.violation and attainment.counts[outcome]
    ]
    return ", ".join(parts) or "none"


def starts(report: Report) -> str:
    parts = [f"{share(report.starts[kind])} {kind}" for kind in StartKind if report.starts[kind] > 0]
    return ", ".join(parts) or "–"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def table(rows: Sequence[Row]) -> str:
    """Return rows of equal length as aligned columns, the first row as a head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines) + "\n"
