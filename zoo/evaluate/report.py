"""Write EVALUATION.json next to the weights: each part's figures, and a line about each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoo.evaluate.bar import PARTS, Goal, Row, measure
from zoo.evaluate.estimates import CONFIDENCE
from zoo.evaluate.studio import Studio

EVALUATION = "EVALUATION.json"


def evaluate(weights: Path, work: Path, parts: Iterable[str], count: int, seeds: int) -> list[Row]:
    """Measure these parts and put them into EVALUATION.json; other parts stay unchanged.

    EVALUATION.json: part → prompts, seeds, missing prerequisites, and its figures with intervals and goals.
    """
    rows = measure(Studio(weights, work, count, seeds), parts)
    path = weights / EVALUATION
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = report.get("parts", {})
    for part in {row.part: None for row in rows}:
        of_part = [row for row in rows if row.part == part]
        missing = [{"missing": row.missing} for row in of_part if row.missing]
        figures = [figure(row) for row in of_part if not row.missing]
        found[part] = missing[0] if missing else {"prompts": count, "seeds": seeds, "figures": figures}
    ordered = {part: found[part] for part in PARTS if part in found}
    content = {"confidence": CONFIDENCE, "parts": ordered}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return rows


def figure(row: Row) -> dict[str, Any]:
    assert row.figure is not None
    numbers = {name: round(value, 4) for name, value in vars(row.figure).items()}
    return {"name": row.name, **numbers, "unit": row.unit, "goal": goal_in_words(row.goal), "ok": row.ok}


def goal_in_words(goal: Goal | None) -> str | None:
    if goal is None:
        return None
    bounds = [f">= {goal.at_least:g}"] if goal.at_least is not None else []
    bounds += [f"<= {goal.at_most:g}"] if goal.at_most is not None else []
    if goal.surely:
        return " and ".join(bounds).replace("=", "") + " by the whole interval"
    return " and ".join(bounds)


def line(row: Row) -> str:
    if row.figure is None:
        return f"{row.part}: missing: {row.missing}"
    value = f"{row.figure.value:.4g} [{row.figure.low:.4g}, {row.figure.high:.4g}] {row.unit}".rstrip()
    verdict = "" if row.goal is None else f" goal {goal_in_words(row.goal)}: {'ok' if row.ok else 'short'}"
    return f"{row.part}: {row.name}: {value}{verdict}"
