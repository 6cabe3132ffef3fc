"""Write the trained parts as stock diffusers and transformers directories, with cards and a registry.

    pentimento zoo export                   # everything that is trained
    pentimento zoo export --only tiny-clip  # or some of it

Every tensor is stored as fp16 safetensors. The models' shared parts are byte-identical, so that git stores them once.
All directories are written next to the weights and replace the old ones when the last is complete.
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
    parser.add_argument(
        "--weights", type=Path, default=WEIGHTS, help="folder of the exported directories [zoo/weights]"
    )
    parser.add_argument("--untrained", action="store_true", help="replace parts without a checkpoint by untrained ones")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    export_all(arguments.work, arguments.weights, arguments.only, untrained=arguments.untrained)


if __name__ == "__main__":
    run(main)
