"""Generate captions into a grid of images: `pentimento zoo sample [PROMPT …] [--model NAME --out FILE]`.

pentimento zoo sample "a red star at night" --model tiny-flow
pentimento zoo sample --lora tiny-lora-neon --lora-weight 0.7
pentimento zoo sample --controlnet tiny-controlnet-edges     # with drawn scenes' edges
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from zoo.command import finite, positive, run
from zoo.devices import DEVICES, choose_device
from zoo.painting.grid import grid
from zoo.painting.samples import Manner, sample_tiles
from zoo.registry import WEIGHTS


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo sample", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="captions; the default is a dozen of the zoo's")
    parser.add_argument("--model", default="tiny-heavy", help="a pipeline of the registry [%(default)s]")
    parser.add_argument("--lora", metavar="NAME", help="a LoRA of the registry")
    parser.add_argument("--lora-weight", type=finite, default=1.0)
    parser.add_argument("--controlnet", metavar="NAME", help="a ControlNet of the registry")
    parser.add_argument(
        "--condition", type=Path, metavar="FILE", help="image of its condition; the default is drawn scenes'"
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=positive)
    parser.add_argument("--scale", type=finite, help="guidance scale")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first image; later ones follow")
    parser.add_argument("--zoom", type=positive, default=3, help="pixels of the grid per image pixel")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_argument("--out", type=Path, default=Path("zoo-samples.png"), help="PNG to write [%(default)s]")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    choose_device(given.device)
    manner = Manner(given.model, given.steps, given.scale, given.lora, given.lora_weight, given.controlnet)
    tiles = sample_tiles(manner, given.prompts, given.seed, given.weights, given.condition)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    grid(tiles, zoom=given.zoom).save(given.out, optimize=True)
    print(given.out)


if __name__ == "__main__":
    run(main)
