"""Measure the seconds of an image with m ControlNets and n LoRAs, as Katz's Fig. 14: 0C0L, 0C1L, 1C0L, 1C1L, 2C2L,
3C0L, 3C2L.

    python -m benchmarks.adapter_latency

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
the worker's, and each ControlNet's steps.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image

from benchmarks.papers.constants import KATZ_LATENCIES
from lab.emulation.pace import DevicePace, read_pace
from lab.emulation.paced_worker.loras import paced_digest
from lab.fixtures.controlled_generation import ControlledCase
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
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import ControlNetSelection, LoraSelection, Scheduler
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.profiles.catalogue import read_profiles
from zoo.registry import WEIGHTS

SDXL = ROOT / "scenarios" / "paces" / "sdxl-h800.toml"
ASKED = {name: (int(name[0]), int(name[2])) for name in KATZ_LATENCIES}
NEW_IMAGES = "3C2L, new images"
MOST_RATIO = 1.15
ZOO_STEPS, ZOO_GUIDANCE = 50, 3.0
# The share of the steps that Katz runs without a LoRA (section 6).
KATZ_START = 0.2
ZOO_CONTROLNETS = ("tiny-controlnet-edges", "tiny-controlnet-layout", "tiny-controlnet-edges")


@dataclass(frozen=True)
class TimedRequest:
    """Store one image's adapters as "mCnL", its seconds, and its device-seconds by the profile."""

    asked: str
    seconds: float
    device_s: float


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
    loras = [next(turns) for _ in range(lora_count)]
    selections = [LoraSelection(lora.name, 1.0, paced_digest(lora)) for lora in loras]
    plain = torch.zeros(1, 3, pace.height_px, pace.width_px)
    conditions = [plain] * max(controlnets, 1)
    if is_new and shades is not None:
        conditions = [plain + next(shades) / 255 for _ in conditions]
    await together.generated(ControlledCase(_case(pace, 1), ()), conditions)
    controlled = ControlledCase(_case(pace, pace.steps), (ControlSetting(),) * controlnets)
    patch_step = int(min((lora.latest_start_fraction for lora in loras), default=0.0) * pace.steps)
    result = await together.generated(controlled, conditions, selections, patch_step)
    seconds = sum(timing.duration_ms for timing in result.timings) / 1e3
    return TimedRequest(asked, seconds, _device_s(pace, controlnets, lora_count))


def _case(pace: DevicePace, steps: int) -> Case:
    return Case("a red circle", "", Scheduler.EULER, 1, steps, pace.guidance_scale)


def _device_s(pace: DevicePace, controlnets: int, lora_count: int) -> float:
    rows = 2 if pace.guidance_scale > 1.0 else 1
    own = pace.steps * (pace.encode.of(rows) + pace.decode.of(rows)) + pace.picture_s
    controlled = sum(controlnet.step.of(rows) for controlnet in pace.controlnets[:controlnets])
    return own + pace.steps * controlled + (pace.patch_s if lora_count else 0.0)


def diffusers_images(rounds: int) -> tuple[list[TimedRequest], float, float]:
    """Time diffusers' pipelines on the zoo, with the kinds alternating. Also return the median seconds of reading a
    LoRA and of fusing it."""
    pipelines = [_pipeline(count) for count in range(4)]
    turns = itertools.cycle(sorted(path for path in WEIGHTS.glob("tiny-lora*") if path.is_dir()))
    loads: list[float] = []
    fuses: list[float] = []
    found = []
    for number in range(rounds + 1):
        for asked, (controlnets, lora_count) in ASKED.items():
            began_s = time.monotonic()
            pipeline = pipelines[controlnets]
            names = [f"lora{place}" for place in range(lora_count)]
            for name in names:
                pipeline.load_lora_weights(next(turns), adapter_name=name)
            read_s = time.monotonic()
            if names:
                pipeline.set_adapters(names)
                pipeline.fuse_lora()
                loads.append((read_s - began_s) / len(names))
                fuses.append(time.monotonic() - read_s)
            _generate(pipeline, controlnets)
            seconds = time.monotonic() - began_s
            if names:
                pipeline.unfuse_lora()
                pipeline.unload_lora_weights()
            if number:  # skip the first round
                found.append(TimedRequest(asked, seconds, seconds))
    return found, median(loads), median(fuses)


def _pipeline(controlnets: int) -> Any:
    from diffusers import ControlNetModel, DDIMScheduler, StableDiffusionControlNetPipeline, StableDiffusionPipeline

    parts: dict[str, Any] = {"safety_checker": None, "feature_extractor": None}
    if controlnets:
        networks = [ControlNetModel.from_pretrained(WEIGHTS / name) for name in ZOO_CONTROLNETS[:controlnets]]
        kind, parts["controlnet"] = StableDiffusionControlNetPipeline, networks
    else:
        kind = StableDiffusionPipeline
    pipeline = kind.from_pretrained(WEIGHTS / "tiny-heavy", **parts)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _generate(pipeline: Any, controlnets: int) -> None:
    told = {"image": [Image.new("RGB", (64, 64))] * controlnets} if controlnets else {}
    options = {"num_inference_steps": ZOO_STEPS, "guidance_scale": ZOO_GUIDANCE, "width": 64, "height": 64}
    with torch.inference_mode():
        pipeline("a red circle", generator=torch.Generator().manual_seed(1), **told, **options)


def zoo_starts() -> list[float]:
    """Return the shares of the schedule that may run without each of the zoo's LoRAs, by its profiles."""
    base = digest_checkpoint(check_checkpoint(WEIGHTS / "tiny-heavy")).model
    starts = read_profiles([WEIGHTS / LORA_BOUNDS_FILE]).latest_starts(base)
    if not starts:
        raise SystemExit(f"{LORA_BOUNDS_FILE} has no LoRA of tiny-heavy")
    return [starts[digest] for digest in sorted(starts)]


def write_zoo_pace(
    path: Path, images: Sequence[TimedRequest], load_s: float, fuse_s: float, starts: Sequence[float]
) -> None:
    """Write the zoo's profile from these timed images of diffusers. Its LoRAs may be late by `starts`, in turns."""
    seconds = {name: _median_of(images, name) for name in ("0C0L", "1C0L", "3C0L")}
    step_ms = seconds["0C0L"] / ZOO_STEPS * 1e3
    control_ms = (seconds["3C0L"] - seconds["0C0L"]) / 3 / ZOO_STEPS * 1e3
    decode_ms = max(step_ms - control_ms, 0.1 * step_ms)
    config = {
        "name": '"zoo"',
        "family": '"stable_diffusion"',
        "steps": ZOO_STEPS,
        "guidance_scale": ZOO_GUIDANCE,
        "width_px": 64,
        "height_px": 64,
        "latent_channels": 8,
        "px_per_latent": 4,
        "text_width": 128,
        "block_channels": [32, 64, 96],
        "layers_per_block": 1,
        # measured with both halves of guidance
        "encode_ms": f"{{ 1 = {control_ms}, 2 = {control_ms} }}",
        "decode_ms": f"{{ 1 = {decode_ms}, 2 = {decode_ms} }}",
        "patch_ms": fuse_s * 1e3,
    }
    lines = [f"{key} = {value}" for key, value in config.items()]
    for name in ("edges", "layout", "edges-again"):
        lines += ["[[controlnets]]", f'name = "{name}"', f"step_ms = {{ 1 = {control_ms}, 2 = {control_ms} }}"]
    for number in range(4):
        start = starts[number % len(starts)]
        lines += ["[[loras]]", f'name = "lora-{number}"', f"load_s = {load_s}", f"latest_start_fraction = {start}"]
    path.write_text("\n".join(lines) + "\n")


def _median_of(images: Sequence[TimedRequest], asked: str) -> float:
    return median(image.seconds for image in images if image.asked == asked)


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


def main() -> int:
    options = parse_options("adapter_latency", __doc__)
    torch.set_num_threads(1)
    rounds = 1 if options.quick else 3
    theirs, load_s, fuse_s = diffusers_images(rounds)
    with shared_folder() as folder:
        write_zoo_pace(folder / "zoo.toml", theirs, load_s, fuse_s, zoo_starts())
        zoo = asyncio.run(ours(folder / "zoo.toml", rounds))
        write_zoo_pace(folder / "katz.toml", theirs, load_s, fuse_s, [KATZ_START])
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
