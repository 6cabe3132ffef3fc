"""Write the model cards next to the exported weights, with curves, samples and figures.

pentimento zoo cards    # generates the sample grids and writes every card again, with the present figures
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from zoo.cards.card import write_cards
from zoo.command import positive, run
from zoo.registry import CARD, WEIGHTS
from zoo.train.parts import WORK


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo cards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the curves' logs [%(default)s]")
    parser.add_argument("--no-samples", action="store_true", help="keep the sample grids unchanged")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in write_cards(arguments.weights, arguments.work, samples=not arguments.no_samples):
        print(arguments.weights / name / CARD)


if __name__ == "__main__":
    run(main)
