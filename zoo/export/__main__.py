"""Write the trained parts as stock diffusers and transformers directories, with cards and a registry.

    pentimento zoo export                   # everything that is trained
    pentimento zoo export --only tiny-clip  # or some of it

Every tensor is stored as fp16 safetensors. What the models share is byte-identical, so that git stores it once. All
directories are written beside the weights and take the old ones' places when the last of them is whole.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from zoo.command import positive, run
from zoo.export.models import export_all
from zoo.registry import MODELS, WEIGHTS
from zoo.train.parts import WORK


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[], metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of checkpoints and logs [%(default)s]")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="where the directories go [zoo/weights]")
    parser.add_argument("--untrained", action="store_true", help="stand in for parts that have no checkpoint yet")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    export_all(arguments.work, arguments.weights, arguments.only, untrained=arguments.untrained)


if __name__ == "__main__":
    run(main)
