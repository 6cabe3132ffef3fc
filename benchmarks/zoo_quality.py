"""Measure every part of the zoo against its goals, on prompts with unseen combinations.

    pentimento zoo train judge --work WORK          (finder and style-judge likewise, for layout and the LoRAs)
    pentimento zoo train dual-encoder --seed 5 --work OTHERS
    python -m benchmarks.zoo_quality --work WORK --encoder OTHERS

Models and the autoencoder are measured on a second set of prompts too, under another name with the same goals. With
`--encoder` two encoders give CLIPScore, both with the goal: `tiny-clip`, with text weights that the models share, and
one without shared weights. If a goal was changed after a first measurement, the original figure and goal are reported
too.

Every model generates each prompt with the same seeds. Intervals come from a bootstrap over prompts and seeds within
them; comparisons stay paired. The attribute scorer is trained on drawings only. Images are cached in the work folder by
the digest of their models' weights, so that a later or continued run only generates missing ones.

`--only PART …` measures those parts and leaves the file's results of others unchanged.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lab.runs.measure import (
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
from lab.runs.parts import PartResult, merge_parts
from zoo.cards.figures import SECOND_SET
from zoo.evaluate.bar import PARTS, Goal, Row, measure
from zoo.evaluate.encoder_apart import check_encoder_apart
from zoo.evaluate.studio import Studio
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

METHOD = "bootstrap percentile over prompts, seeds within prompts"
QUICK_PROMPTS, QUICK_SEEDS = 16, 2
FIRST_SET = "first prompts"
# Retrieval draws its own pools, and a model's speed does not depend on the prompts.
WITHOUT_SETS = ("dual-encoder", "light-speed")
# ControlNets and LoRAs run on one set: they generate their images separately, which is most of the work.
ON_BOTH_SETS = ("autoencoder", "heavy", "heavy-steps", "light", "flow", "discriminator")
HOW = {
    "prompts": "held-out combinations unless a figure says otherwise, one natural caption each; the second set has the "
    "scenes that follow the first's, under other noise",
    "goal set before measuring": "the goal that a figure had before it was changed for another one, in the same part",
    "samples": "one a prompt; of attributes `asked for:seen by seed`; of comparisons both sides",
}


def main() -> int:
    options = parse_options("zoo_quality", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(rest["threads"])
    count, seeds = (QUICK_PROMPTS, QUICK_SEEDS) if options.quick else (rest["prompts"], rest["seeds"])
    parts = rest["only"] or list(PARTS)
    if rest["encoder"] is not None:
        check_encoder_apart(rest["encoder"])

    def studio_of(size: int, first: int) -> Studio:
        return Studio(rest["weights"], rest["work"], size, seeds, first, rest["encoder"])

    second = min(count, rest["second_prompts"])
    rows = list(rows_of({FIRST_SET: studio_of(count, 0), SECOND_SET: studio_of(second, count)}, parts))
    manner = {"prompts": count, "second_prompts": second, "seeds": seeds, "threads": rest["threads"]}
    manner["encoders"] = encoders_of(rest["encoder"])
    found = {part: result_of([row for row in rows if row.part == part], manner) for part in parts}
    figures, notes = merge_parts(options.out if rest["only"] else None, list(PARTS), found)
    return publish(options, figures, notes={**HOW, "parts": notes})


def rows_of(studios: dict[str, Studio], parts: Sequence[str]) -> Iterator[Row]:
    """Measure parts in order, those of `ON_BOTH_SETS` with every studio; each figure is named by its studio's set."""
    for part in parts:
        for name in sets_of(part):
            for row in measure(studios[name], [part]):
                yield row if part in WITHOUT_SETS else replace(row, name=f"{row.name}, {name}")


def sets_of(part: str) -> tuple[str, ...]:
    """Return the sets of prompts that a part is measured on."""
    return (FIRST_SET, SECOND_SET) if part in ON_BOTH_SETS else (FIRST_SET,)


def encoders_of(encoder: Path | None) -> str:
    """Return the encoders of CLIPScore."""
    return "tiny-clip" if encoder is None else "tiny-clip, and one of another seed that no model shares"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--second-prompts", type=int, default=256, help="prompts of the second set")
    parser.add_argument("--seeds", type=int, default=3, help="images per prompt")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="work folder of the scorers and of generated images")
    parser.add_argument(
        "--encoder",
        type=Path,
        metavar="DIR",
        help="work folder of a dual encoder of another seed, for a second reading",
    )
    parser.add_argument("--threads", type=int, default=1)


def result_of(rows: Sequence[Row], manner: dict[str, Any]) -> PartResult:
    missing = next((row.missing for row in rows if row.missing), "")
    return PartResult([] if missing else [figure_of(row) for row in rows], manner, missing)


def figure_of(row: Row) -> Figure:
    assert row.figure is not None
    interval = Interval(round(row.figure.low, 5), round(row.figure.high, 5), METHOD)
    target = target_of(row.goal, row.unit)
    return Figure(f"{row.part}: {row.name}", round(row.figure.value, 5), target, len(list(row.samples)), interval)


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
