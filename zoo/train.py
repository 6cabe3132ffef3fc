"""Train one part of the zoo: `python -m zoo.train PART [--steps N --work DIR]`. Run again to resume."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from zoo.training import Part, Plan, Run

WORK = Path(".zoo-work")
PARTS = {
    "autoencoder": ("zoo.train_autoencoder", "AutoencoderPart", "PLAN"),
    "dual-encoder": ("zoo.train_dual_encoder", "DualEncoderPart", "PLAN"),
    "image-tower": ("zoo.train_image_tower", "ImageTowerPart", "PLAN"),
    "judge": ("zoo.train_judge", "JudgePart", "PLAN"),
    "heavy": ("zoo.train_denoiser", "HeavyPart", "HEAVY_PLAN"),
    "light": ("zoo.train_denoiser", "LightPart", "LIGHT_PLAN"),
    "flow": ("zoo.train_flow", "FlowPart", "PLAN"),
    "controlnet-edges": ("zoo.train_controlnet", "EdgesPart", "PLAN"),
    "controlnet-layout": ("zoo.train_controlnet", "LayoutPart", "PLAN"),
    "finder": ("zoo.train_finder", "FinderPart", "PLAN"),
    "lora-neon": ("zoo.train_lora", "NeonPart", "PLAN"),
    "lora-blueprint": ("zoo.train_lora", "BlueprintPart", "PLAN"),
    "lora-mosaic": ("zoo.train_lora", "MosaicPart", "PLAN"),
    "style-judge": ("zoo.train_style_judge", "StyleJudgePart", "PLAN"),
    "discriminator": ("zoo.train_discriminator", "DiscriminatorPart", "PLAN"),
}


def part_and_plan(name: str) -> tuple[Callable[..., Part], Plan]:
    module_name, part_name, plan_name = PARTS[name]
    module = import_module(module_name)
    return getattr(module, part_name), getattr(module, plan_name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.train", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--steps", type=int, help="length of the whole schedule, steps already done included")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of checkpoints and logs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    make_part, plan = part_and_plan(arguments.part)
    plan = replace(plan, seed=arguments.seed, steps=arguments.steps or plan.steps)
    Run(make_part(arguments.work, seed=arguments.seed), plan, arguments.work / arguments.part).train()


if __name__ == "__main__":
    main()
