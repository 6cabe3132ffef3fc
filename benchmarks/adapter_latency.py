"""Measure the seconds of an image with m ControlNets and n LoRAs, as Katz's Fig. 14: 0C0L, 0C1L, 1C0L, 1C1L, 2C2L,
3C0L, 3C2L.

    python -m benchmarks.adapter_latency
    python -m benchmarks.adapter_latency --devices --out benchmarks/results/adapter_latency_devices.json

Our side is live: a worker, three replicas of controlnet_svc, their streams, asynchronous loads of LoRAs and patches.
Devices are paced: their compute sleeps for the times of a profile. There are two profiles: the published one
(scenarios/paces/sdxl-h800.toml, SDXL on an H800) and the zoo's, measured in this run. Diffusers loads and computes one
adapter after the other. For the zoo this run times its pipelines, with LoRAs read and fused for every image; for SDXL
its figures are Katz's published ones.

The zoo's LoRAs may be late by its own profiles (zoo/weights/lora-bounds.json), which allow 0 or 1 step of 50; a second
row has Katz's K, 0.2 of the steps. In the zoo's profile, C is the time that a ControlNet adds to a step of diffusers'
pipeline. The encoder has a ControlNet's architecture and takes as long; the decoder takes the rest of the step. Every
image loads its LoRAs again and starts from the base model's weights. Its control images are already embedded, except in
the row "new images". Seconds are the worker's, from the order to the encoded image. Device-seconds are the profile's:
the worker's, and each ControlNet's steps. `--devices` measures every kind by number of devices instead, with latent
parallelism (`adapter_devices`).
"""

import argparse
import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.adapter_devices import SLOWNESS, device_figures
from benchmarks.adapter_sides import (
    ASKED,
    ZOO_STEPS,
    StepTimes,
    TimedRequest,
    diffusers_images,
    generated_from_base,
    next_of,
    zoo_model,
    zoo_pace,
)
from lab.emulation.pace import DevicePace, read_pace, write_pace
from lab.emulation.paced_worker.loras import paced_digest
from lab.fixtures.controlnet_serving import (
    PACED,
    ControlledByService,
    ServedControlNet,
    replica_process,
    serving_together,
    shared_folder,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.worker_process import worker_process
from lab.runs.intervals import median_ratio
from lab.runs.machine import ROOT
from lab.runs.measure import Figure, Target, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import digest_checkpoint
from pentimento.domain.generation import ControlNetSelection, LoraSelection, Scheduler
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.profiles.catalogue import read_profiles
from zoo.registry import WEIGHTS

SDXL = ROOT / "scenarios" / "paces" / "sdxl-h800.toml"
NEW_IMAGES = "3C2L, new images"
MOST_RATIO = 1.15
# The share of the steps that Katz runs without a LoRA (section 6).
KATZ_START = 0.2


async def ours(path: Path, rounds: int) -> list[TimedRequest]:
    """Return the images of paced devices, with the kinds alternating."""
    pace = read_pace(path)
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        served = []
        for number, controlnet in enumerate(pace.controlnets):
            flags = ("--controlnets", str(path), "--prefetch", controlnet.name)
            address = stack.enter_context(replica_process(folder, f"c{number}", PACED, *flags))
            served.append(ServedControlNet(ControlNetSelection(controlnet.name, b""), address))
        shared = ("--shared-memory-dir", str(folder / "shared"), "--max-batch", "1")
        worker = worker_process(path, *shared, "--lora-memory-mib", "0", module="lab.emulation.paced_worker")
        async with serving_together(stack.enter_context(worker), served) as together:
            turns = itertools.cycle(pace.loras)
            for asked in ASKED:  # open channels, and load everything once
                await timed_image(together, pace, asked, turns)
            shades = itertools.count(1)
            kinds = (*ASKED, NEW_IMAGES)
            return [await timed_image(together, pace, asked, turns, shades) for _ in range(rounds) for asked in kinds]


async def timed_image(
    together: ControlledByService,
    pace: DevicePace,
    asked: str,
    turns: "itertools.cycle[Any]",
    shades: "Iterator[int] | None" = None,
) -> TimedRequest:
    """Generate one image from the base model's weights, with LoRAs that the last image did not use. With `shades` (of
    255), its control images are new, in the next shade."""
    is_new = asked == NEW_IMAGES and shades is not None
    controlnets, lora_count = ASKED["3C2L" if is_new else asked]
    loras = next_of(turns, lora_count)
    selections = [LoraSelection(lora.name, 1.0, paced_digest(lora)) for lora in loras]
    plain = torch.zeros(1, 3, pace.height_px, pace.width_px)
    conditions = [plain] * max(controlnets, 1)
    if is_new and shades is not None:
        conditions = [plain + next(shades) / 255 for _ in conditions]
    case = Case("a red circle", "", Scheduler.EULER, 1, pace.steps, pace.guidance_scale)
    patch_step = int(min((lora.latest_start_fraction for lora in loras), default=0.0) * pace.steps)
    seconds, _ = await generated_from_base(together, case, conditions, controlnets, selections, patch_step)
    return TimedRequest(asked, seconds, _device_s(pace, controlnets, lora_count))


def _device_s(pace: DevicePace, controlnets: int, lora_count: int) -> float:
    rows = 2 if pace.guidance_scale > 1.0 else 1
    own = pace.steps * (pace.encode.of(rows) + pace.decode.of(rows)) + pace.picture_s
    controlled = sum(controlnet.step.of(rows) for controlnet in pace.controlnets[:controlnets])
    return own + pace.steps * controlled + (pace.patch_s if lora_count else 0.0)


def zoo_starts() -> list[float]:
    """Return the shares of the schedule that may run without each of the zoo's LoRAs, by its profiles."""
    base = digest_checkpoint(check_checkpoint(WEIGHTS / "tiny-heavy")).model
    starts = read_profiles([WEIGHTS / LORA_BOUNDS_FILE]).latest_starts(base)
    if not starts:
        raise SystemExit(f"{LORA_BOUNDS_FILE} has no LoRA of tiny-heavy")
    return [starts[digest] for digest in sorted(starts)]


def figures_of(name: str, images: Sequence[TimedRequest], target: Target) -> list[Figure]:
    """Return the ratio of the most adapters to none, then each kind's figure."""
    kinds = [asked for asked in (*ASKED, NEW_IMAGES) if any(image.asked == asked for image in images)]
    by_kind = {asked: [image for image in images if image.asked == asked] for asked in kinds}
    pairs = [(most.seconds, none.seconds) for most, none in zip(by_kind["3C2L"], by_kind["0C0L"], strict=True)]
    figures = [measured(f"{name}: 3C2L over 0C0L", pairs, median_ratio, target)]
    if NEW_IMAGES in by_kind:
        anew = [(most.seconds, none.seconds) for most, none in zip(by_kind[NEW_IMAGES], by_kind["0C0L"], strict=True)]
        figures.append(measured(f"{name}: {NEW_IMAGES}, over 0C0L", anew, median_ratio, informative()))
    for asked, group in by_kind.items():
        seconds = [image.seconds for image in group]
        figures.append(measured(f"{name}: {asked}", seconds, median, informative("s")))
        figures.append(Figure(f"{name}: {asked}, device-seconds", group[0].device_s, informative("s")))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", action="store_true", help="0 to 3 ControlNets, 0 to 2 LoRAs, on 1 to 8 devices")


def main() -> int:
    options = parse_options("adapter_latency", __doc__, add_options)
    torch.set_num_threads(1)
    rounds = 1 if options.quick else 3
    if options.rest["devices"]:
        notes = {"slowness": SLOWNESS, "cores": os.cpu_count()}
        return publish(options, device_figures(zoo_starts(), read_pace(SDXL), quick=options.quick), notes=notes)
    images = diffusers_images(zoo_model(), ASKED.values(), rounds)
    times = StepTimes.of(images, ZOO_STEPS)
    theirs = [TimedRequest(one.asked, one.image.seconds, one.image.seconds) for one in images]
    with shared_folder() as folder:
        write_pace(folder / "zoo.toml", zoo_pace(times, zoo_starts()))
        zoo = asyncio.run(ours(folder / "zoo.toml", rounds))
        write_pace(folder / "katz.toml", zoo_pace(times, [KATZ_START]))
        katz = asyncio.run(ours(folder / "katz.toml", rounds))
    sdxl = asyncio.run(ours(SDXL, rounds))
    figures = [
        *figures_of("SDXL, ours", sdxl, at_most(MOST_RATIO)),
        *figures_of("zoo, ours", zoo, at_most(MOST_RATIO)),
        # Only the ratios: this side's seconds are the zoo's.
        *figures_of("zoo, ours, Katz's K", katz, informative())[:2],
        *figures_of("zoo, diffusers", theirs, informative("x")),
    ]
    return publish(options, figures, notes={"rounds": rounds, "cores": os.cpu_count()})


if __name__ == "__main__":
    raise SystemExit(main())
