"""Read the model cards' figures from results, and format them.

`benchmarks/results/zoo_quality.json` comes first; parts that it does not have come from EVALUATION.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.domain.errors import FailedPrecondition

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "zoo_quality.json"
SECOND_SET = "second prompts"  # suffix of the figures' names
COLUMNS = ("figure", "value", "interval", "goal", "")
Cells = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class PartFigures:
    """Hold a part's rows (name, value, interval, goal, verdict), and a sentence about their prompts."""

    how: str
    rows: Sequence[Cells]


def read_figures(results: Path, evaluation: Path) -> dict[str, PartFigures]:
    """Return the figures by part of the bar; the benchmark's take precedence over a quick evaluation's."""
    found = _evaluated(_read_json(evaluation))
    return found | _benchmarked(_read_json(results))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise FailedPrecondition("BAD_FILE", f"{path}: expected a JSON object of figures")
    return document


def _benchmarked(result: dict[str, Any]) -> dict[str, PartFigures]:
    """Read `benchmarks.zoo_quality`: figures named `PART: NAME`, with their setting under `notes`."""
    rows: dict[str, list[Cells]] = {}
    for figure in result.get("figures", []):
        part, _, name = figure["name"].partition(": ")
        if figure["figure"] is not None:
            bounds = tuple(figure["interval"]) if figure["interval"] else None
            rows.setdefault(part, []).append(
                _row(name, figure["figure"], bounds, figure["unit"], figure["target"], figure["ok"])
            )
    notes = result.get("notes", {}).get("parts", {})
    return {part: PartFigures(_how(notes.get(part, {}), found), found) for part, found in rows.items()}


def _evaluated(report: dict[str, Any]) -> dict[str, PartFigures]:
    """Read `zoo.evaluate`."""
    found = {}
    for part, measured in report.get("parts", {}).items():
        figures = measured.get("figures", [])
        rows = [
            _row(f["name"], f["value"], (f["low"], f["high"]), f["unit"], f["goal"] or "none", f["ok"]) for f in figures
        ]
        if rows:
            found[part] = PartFigures(_how(measured, rows), rows)
    return found


def _how(measured: dict[str, Any], rows: Sequence[Cells]) -> str:
    seeds = measured.get("seeds", 1)
    prompts = f"{measured['prompts']} prompts" if "prompts" in measured else "held-out prompts"
    if "second_prompts" in measured and any(name.endswith(SECOND_SET) for name, *_ in rows):
        prompts += f", {measured['second_prompts']} {SECOND_SET}"
    day = f", {measured['at'][:10]}" if "at" in measured else ""
    return f"{prompts}, {seeds} {'seed' if seeds == 1 else 'seeds'} each{day}; intervals at 95 %."


def _row(name: str, value: float, bounds: tuple[float, float] | None, unit: str, goal: str, ok: bool) -> Cells:
    interval = "{:.4g} to {:.4g}".format(*bounds) if bounds else ""
    verdict = "" if goal in ("none", "") else "reached" if ok else "short"
    return name, f"{value:.4g} {unit}".rstrip(), interval, "" if not verdict else goal, verdict


def figures_in_words(part: str, figures: dict[str, PartFigures]) -> str:
    """Return a table, or the statement that there is none."""
    if part not in figures:
        return f"`{part}`: not measured yet; `python -m benchmarks.zoo_quality --only {part}` does."
    rows = [COLUMNS, ("---",) * len(COLUMNS), *figures[part].rows]
    table = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join([f"`{part}`: {figures[part].how}", "", *table])
