"""Train one part of the zoo: `python -m zoo.train PART [--steps N --work DIR]`. Run again to resume.

Exit status 2, and one line that says what to do, where a part that it stands on is not trained yet or a file is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from pentimento.domain.errors import FailedPrecondition
from zoo.command import run
from zoo.files import file_digest
from zoo.training import CHECKPOINT, DEVICES, Part, Plan, Run, choose_device, read_state

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


# What each part stands on, in the order of training: it takes their averaged weights as they are.
LATENTS = ("autoencoder", "dual-encoder")
NEEDS: dict[str, tuple[str, ...]] = {
    "image-tower": ("dual-encoder",),
    "heavy": LATENTS,
    "light": LATENTS,
    "flow": LATENTS,
    **dict.fromkeys(("controlnet-edges", "controlnet-layout"), (*LATENTS, "heavy")),
    **dict.fromkeys(("lora-neon", "lora-blueprint", "lora-mosaic"), (*LATENTS, "heavy")),
    "discriminator": (*LATENTS, "heavy", "light"),
}


def part_and_plan(name: str) -> tuple[Callable[..., Part], Plan]:
    module_name, part_name, plan_name = PARTS[name]
    module = import_module(module_name)
    return getattr(module, part_name), getattr(module, plan_name)


def check_needs(name: str, work: Path) -> None:
    """FailedPrecondition naming the parts to train first; a word on stderr about those that are not done."""
    needed = NEEDS.get(name, ())
    missing = [part for part in needed if not (work / part / CHECKPOINT).exists()]
    if missing:
        commands = ", then ".join(f"`pentimento zoo train {part}`" for part in missing)
        raise FailedPrecondition(
            "PART_NOT_TRAINED",
            f"{name} stands on {missing[0]}, which has no checkpoint in {work}: run {commands} first",
        )
    for part in needed:
        for note in notes_on(part, work):
            print(f"note: {note}", file=sys.stderr)


def foundations(name: str, work: Path) -> dict[str, str]:
    """Digests of the checkpoints that a part stands on."""
    return {part: file_digest(work / part / CHECKPOINT) for part in NEEDS.get(name, ())}


def changed_foundations(name: str, work: Path) -> list[str]:
    """The parts that have been trained further, or anew, since the last checkpoint of the one that stands on them."""
    recorded = read_state(work / name).get("stands_on")
    if not isinstance(recorded, dict):
        return []
    return [part for part, digest in foundations(name, work).items() if recorded.get(part, digest) != digest]


def notes_on(name: str, work: Path) -> Iterator[str]:
    """What whoever builds on a part's checkpoint should know: it is not done, or stands on what is no longer there."""
    state = read_state(work / name)
    if state["step"] != state.get("steps"):
        yield f"{name} stands at step {state['step']} of {state.get('steps')}"
    if changed := changed_foundations(name, work):
        yield f"{name} was trained on another {', '.join(changed)}; remove {work / name} to train it anew"


def main() -> None:
    parser = argparse.ArgumentParser(prog="pentimento zoo train", description=__doc__)
    parser.add_argument("part", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--steps", type=positive, help="length of the whole schedule, steps already done included")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of checkpoints and logs [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="where it computes [a GPU where there is one]"
    )
    trial = parser.add_argument_group("for a trial of a few steps")
    trial.add_argument("--count", type=positive, help="drawings to learn from")
    trial.add_argument("--batch", type=positive, help="pictures a step")
    trial.add_argument("--checkpoint-every", type=positive, metavar="STEPS")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    choose_device(arguments.device)
    check_needs(arguments.part, arguments.work)
    arguments.work.mkdir(parents=True, exist_ok=True)
    make_part, plan = part_and_plan(arguments.part)
    plan = replace(
        plan,
        seed=arguments.seed,
        steps=arguments.steps or plan.steps,
        checkpoint_every=arguments.checkpoint_every or plan.checkpoint_every,
    )
    size = {name: given for name in ("count", "batch") if (given := getattr(arguments, name)) is not None}
    folder, stands_on = arguments.work / arguments.part, foundations(arguments.part, arguments.work)
    if (folder / CHECKPOINT).exists() and (changed := changed_foundations(arguments.part, arguments.work)):
        print(
            f"note: {', '.join(changed)} changed since {arguments.part} began; remove {folder} to begin anew",
            file=sys.stderr,
        )
    training = Run(make_part(arguments.work, seed=arguments.seed, **size), plan, folder, stands_on)
    if training.step >= plan.steps:
        print(f"{arguments.part}: done already, {training.step} steps of {plan.steps}")
    training.train()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


if __name__ == "__main__":
    run(main)
