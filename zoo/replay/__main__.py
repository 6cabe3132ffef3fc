"""Record light and heavy for emulated devices and the simulator: `python -m zoo.replay [--prompts N --pictures N]`.

Run it on an otherwise idle machine: sixteen emulated devices will use the times.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lab.emulation.recording import read_profile, write_recording
from zoo.registry import WEIGHTS
from zoo.replay.record import record
from zoo.train.parts import WORK

RECORDED = Path(__file__).parent / "recorded"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.replay", description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="work folder of the attribute scorer")
    parser.add_argument("--out", type=Path, default=RECORDED)
    parser.add_argument("--prompts", type=int, default=128, help="held-out prompts whose qualities are recorded")
    parser.add_argument("--pictures", type=int, default=20, help="number of prompts with stored images")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recording, files = record(arguments.weights, arguments.work, arguments.prompts, arguments.pictures)
    write_recording(arguments.out, recording, files)
    for model in recording.models:
        profile = read_profile(arguments.out, model)
        steps = ", ".join(f"{batch.batch_size}: {1e3 * batch.step.mean_s:.1f}" for batch in profile.batches)
        print(f"{model.name}: ms a step by batch {steps}")
    print(arguments.out, sum(path.stat().st_size for path in arguments.out.iterdir()), "bytes")


if __name__ == "__main__":
    main()
