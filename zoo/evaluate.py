"""Measures the exported models on held-out scenes, and writes EVALUATION.json beside the weights and their cards.

The figures are those of the bar (`zoo/bar.py`), of fewer prompts than `benchmarks.zoo_quality` takes unless it is told
otherwise. What it measures of one part leaves the others as they were.

pentimento zoo eval --only heavy light
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from zoo.bar import PARTS, Goal, Row, measure
from zoo.cards import write_cards
from zoo.command import run
from zoo.estimates import CONFIDENCE
from zoo.registry import WEIGHTS
from zoo.studio import Studio
from zoo.train import WORK

EVALUATION = "EVALUATION.json"


def evaluate(weights: Path, work: Path, parts: Iterable[str], count: int, seeds: int) -> list[Row]:
    """Measure these parts and put them into EVALUATION.json and the cards; other parts stay as they are.

    EVALUATION.json: part → prompts, seeds, what is missing if something is, and its figures with intervals and goals.
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
    write_cards(weights, work)
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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="where the judges are, and painted pictures are kept")
    parser.add_argument("--prompts", type=int, default=64, help="held-out prompts")
    parser.add_argument("--seeds", type=int, default=1, help="pictures a prompt")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parts = arguments.only or list(PARTS)
    rows = evaluate(arguments.weights, arguments.work, parts, arguments.prompts, arguments.seeds)
    print(*map(line, rows), sep="\n")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    run(main)
