"""Train one part of the zoo: `python -m zoo.train PART [--steps N --work DIR]`. Run again to resume.

Exit status 2, with a line of advice, if a foundation is not trained yet or a file is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from zoo.command import positive, run
from zoo.devices import DEVICES, choose_device
from zoo.train.loop import CHECKPOINT, TrainingRun
from zoo.train.parts import PARTS, WORK, changed_foundations, check_needs, foundations, part_and_plan


def main() -> None:
    parser = argparse.ArgumentParser(prog="pentimento zoo train", description=__doc__)
    parser.add_argument("part", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--steps", type=positive, help="length of the whole schedule, including steps already done")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of checkpoints and logs [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=DEVICES, default="auto", help="device [a GPU if there is one]")
    trial = parser.add_argument_group("for a trial of a few steps")
    trial.add_argument("--count", type=positive, help="number of training drawings")
    trial.add_argument("--batch", type=positive, help="images per step")
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
            f"note: {', '.join(changed)} changed since {arguments.part} began; remove {folder} to start again",
            file=sys.stderr,
        )
    training = TrainingRun(make_part(arguments.work, seed=arguments.seed, **size), plan, folder, stands_on)
    if training.step >= plan.steps:
        print(f"{arguments.part}: done already, {training.step} steps of {plan.steps}")
    training.train()


if __name__ == "__main__":
    run(main)
