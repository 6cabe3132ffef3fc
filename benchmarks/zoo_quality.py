"""The zoo against its bar: every part's figures on prompts with combinations that no training has seen.

Each prompt is painted with the same seeds by every model. Intervals come from a bootstrap that draws prompts anew and
seeds within them; what is compared stays paired in it. The judge that reads attributes off pictures has been trained on
drawings alone. Pictures are kept in the work folder by the digest of the weights that painted them, so a second run, or
one that goes on after it was stopped, paints only what is not there yet.

`--only PART …` measures those parts and keeps what the result file has of the others.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.parts import PartResult, merge_parts
from benchmarks.report import (
    Figure,
    Interval,
    Target,
    at_least,
    at_most,
    between,
    informative,
    parse_options,
    publish,
    surely_above,
)
from zoo.evaluate.bar import PARTS, Goal, Row, measure
from zoo.evaluate.estimates import CONFIDENCE
from zoo.evaluate.studio import Studio
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

METHOD = "bootstrap percentile over prompts, seeds within prompts"
QUICK_PROMPTS, QUICK_SEEDS = 16, 2
HOW = {
    "prompts": "held-out combinations unless a figure says otherwise, one natural caption each",
    "samples": "one a prompt; of attributes `asked for:seen by seed`; of comparisons both sides",
}


def main() -> int:
    options = parse_options("zoo_quality", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(rest["threads"])
    count, seeds = (QUICK_PROMPTS, QUICK_SEEDS) if options.quick else (rest["prompts"], rest["seeds"])
    parts = rest["only"] or list(PARTS)
    rows = measure(Studio(rest["weights"], rest["work"], count, seeds), parts)
    manner = {"prompts": count, "seeds": seeds, "threads": rest["threads"]}
    found = {part: result_of([row for row in rows if row.part == part], manner) for part in parts}
    figures, notes = merge_parts(options.out if rest["only"] else None, list(PARTS), found)
    return publish(options, figures, notes={**HOW, "parts": notes})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3, help="pictures a prompt")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="where the judges are, and painted pictures are kept")
    parser.add_argument("--threads", type=int, default=1)


def result_of(rows: Sequence[Row], manner: dict[str, Any]) -> PartResult:
    missing = next((row.missing for row in rows if row.missing), "")
    return PartResult([] if missing else [figure_of(row) for row in rows], manner, missing)


def figure_of(row: Row) -> Figure:
    assert row.figure is not None
    interval = Interval(round(row.figure.low, 5), round(row.figure.high, 5), CONFIDENCE, METHOD)
    target = target_of(row.goal, row.unit)
    return Figure(f"{row.part}: {row.name}", round(row.figure.value, 5), target, list(row.samples), interval)


def target_of(goal: Goal | None, unit: str) -> Target:
    match goal:
        case None:
            return informative(unit)
        case Goal(at_least=float(low), surely=True):
            return surely_above(low, unit)
        case Goal(at_least=float(low), at_most=float(high)):
            return between(low, high, unit)
        case Goal(at_least=float(low)):
            return at_least(low, unit)
        case Goal(at_most=float(high)):
            return at_most(high, unit)
    raise ValueError(f"no target for {goal}")


if __name__ == "__main__":
    raise SystemExit(main())
