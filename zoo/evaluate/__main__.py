"""Measure the exported models on held-out scenes, and write EVALUATION.json next to the weights and their cards.

    pentimento zoo eval --only heavy light

The figures are the bar's (`bar.py`), by default on fewer prompts than `benchmarks.zoo_quality`. Parts that are not
measured stay unchanged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from zoo.cards.card import write_cards
from zoo.command import positive, run
from zoo.evaluate.bar import PARTS
from zoo.evaluate.report import evaluate, line
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="work folder of the scorers and of generated images")
    parser.add_argument("--prompts", type=int, default=64, help="held-out prompts")
    parser.add_argument("--seeds", type=int, default=1, help="images per prompt")
    parser.add_argument("--threads", type=positive, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parts = arguments.only or list(PARTS)
    rows = evaluate(arguments.weights, arguments.work, parts, arguments.prompts, arguments.seeds)
    write_cards(arguments.weights, arguments.work)
    print(*map(line, rows), sep="\n")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    run(main)
