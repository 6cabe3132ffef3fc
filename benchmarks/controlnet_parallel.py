"""Compare an image's latency with the ideal if ControlNets run in other processes during the UNet's first half.

    python -m benchmarks.controlnet_parallel

A worker runs on one core, each ControlNet in a replica of controlnet_svc on the other; images with none and with one
alternate. C, E and D are the mean seconds of a ControlNet's pass, of the UNet's encoder with its mid block, and of its
decoder, recorded by both processes during that image. In sequence a step takes C + E + D; the ideal is max(C, E) + D
(Katz, section 5). The figures are the speed-ups over C + E + D of the denoising stage, with opening of the streams, and
of a step once they are open, as shares of the ideal speed-up. Control images repeat, so that replicas embed them once;
a second series has a new control image each time.

Subjects: the zoo's tiny-heavy under its edges ControlNet; a network of Stable Diffusion 1.5's size with random weights,
float32, 256 pixels, no guidance; and SDXL on paced devices, with passes that sleep for Katz's times. SDXL's residuals
(53.7 MB a step) are in shared memory mapped by both ends; a paced device writes the first number of each row; three
paced ControlNets share a core, since they sleep. The last subject is a small transformer of SD3's kind with random
weights under a ControlNet of half its blocks, with residuals that arrive in parts, and for comparison all together. Its
ideal is by block (`control_overlap.Blocks`). Katz: 1.42 of an ideal 1.45 on NVLink.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.control_overlap import Blocks, OverlapSubject, TimedImage, started, trace_events
from lab.emulation.pace import read_pace
from lab.fixtures.checkpoints import write_flow_checkpoint, write_flow_controlnet
from lab.fixtures.controlled_generation import conditions_for
from lab.fixtures.controlnet_serving import PACED, REAL, register
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.full_size import FULL_SIDE_PX, write_full_size_checkpoint, write_full_size_controlnet
from lab.runs.intervals import median_ratio
from lab.runs.machine import ROOT
from lab.runs.measure import TRACES, Figure, Options, at_least, at_most, informative, measured, parse_options, publish
from pentimento.domain.generation import ControlNetSelection, Scheduler
from pentimento.files.adapter_registry import read_adapters
from zoo.registry import WEIGHTS

PACE = ROOT / "scenarios" / "paces" / "sdxl-h800.toml"
EDGES = "tiny-controlnet-edges"
TARGETS = {"zoo": 0.85, "sd15-size": 0.95, "paced sdxl": 0.95, "flow": 0.9}
ALONE = ("--max-batch", "1")


def zoo(folder: Path, quick: bool) -> OverlapSubject:
    registry = WEIGHTS / "registry.json"
    adapter = read_adapters(registry)[EDGES].adapter
    return OverlapSubject(
        "zoo",
        WEIGHTS / "tiny-heavy",
        registry,
        (ControlNetSelection(EDGES, b"", digest=adapter.digest),),
        tuple(conditions_for(1, 64, 64)),
        Case("a red circle", "", Scheduler.DDIM, 1, 10 if quick else 50, 3.0),
        "services.unet_worker",
        REAL,
        ALONE,
    )


def full_size(folder: Path, quick: bool) -> OverlapSubject:
    """Prepare Stable Diffusion 1.5's UNet and ControlNet with random weights."""
    model = write_full_size_checkpoint(folder / "model")
    selections = register(folder, [write_full_size_controlnet(folder / "controlnet")])
    return OverlapSubject(
        "sd15-size",
        model,
        folder / "registry.json",
        tuple(selections),
        tuple(conditions_for(1, FULL_SIDE_PX, FULL_SIDE_PX)),
        Case("a red circle", "", Scheduler.DDIM, 1, 4, 1.0),
        "services.unet_worker",
        REAL,
        ALONE,
    )


def paced(folder: Path, quick: bool) -> OverlapSubject:
    pace = read_pace(PACE)
    return OverlapSubject(
        "paced sdxl",
        PACE,
        PACE,
        tuple(ControlNetSelection(controlnet.name, b"") for controlnet in pace.controlnets),
        tuple(_blocks(told, pace.width_px) for told in conditions_for(len(pace.controlnets), 32, 32)),
        Case("a red circle", "", Scheduler.EULER, 1, 10 if quick else pace.steps, pace.guidance_scale),
        "lab.emulation.paced_worker",
        PACED,
        ALONE,
    )


# a small SD3: 256 patches, twice the ControlNet's blocks
FLOW_SIDE_PX = 128
FLOW_BLOCKS = Blocks(24, 12)
FLOW_WIDTH: dict[str, Any] = {
    "attention_head_dim": 64,
    "num_attention_heads": 4,
    "caption_projection_dim": 256,
    "sample_size": FLOW_SIDE_PX // 4,
    "pos_embed_max_size": 16,
}


def flow(folder: Path, quick: bool, *replica_flags: str) -> OverlapSubject:
    """Prepare a transformer of random weights and its ControlNet."""
    model = write_flow_checkpoint(folder / "model", num_layers=FLOW_BLOCKS.base, **FLOW_WIDTH)
    controlnet = write_flow_controlnet(folder / "controlnet", num_layers=FLOW_BLOCKS.control, **FLOW_WIDTH)
    return OverlapSubject(
        "flow",
        model,
        folder / "registry.json",
        tuple(register(folder, [controlnet])),
        tuple(conditions_for(1, FLOW_SIDE_PX, FLOW_SIDE_PX)),
        Case("a red circle", "", Scheduler.FLOW_MATCH_EULER, 1, 4 if quick else 10, 4.0),
        "services.unet_worker",
        REAL,
        ALONE,
        replica_flags,
        FLOW_BLOCKS,
    )


def flow_whole(folder: Path, quick: bool) -> OverlapSubject:
    """Prepare the same, with residuals that arrive all together."""
    return flow(folder, quick, "--no-residual-parts")


def _blocks(told: torch.Tensor, side_px: int) -> torch.Tensor:
    """Return noise as large squares: encoded, it has the size of a drawing, not of noise."""
    return torch.nn.functional.interpolate(told, size=(side_px, side_px))


SUBJECTS: dict[str, tuple[Callable[[Path, bool], OverlapSubject], tuple[int, ...]]] = {
    "zoo": (zoo, (0, 1)),
    "sd15-size": (full_size, (0, 1)),
    "paced sdxl": (paced, (0, 1, 3)),
    "flow": (flow, (0, 1)),
    "flow, not in parts": (flow_whole, (0, 1)),
}


async def images_of(name: str, rounds: int, quick: bool, cores: Sequence[int], traces: Path) -> list[TimedImage]:
    write, counts = SUBJECTS[name]
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        subject = write(Path(folder), quick)
        async with started(subject, max(counts), cores) as bench:
            for count in counts:  # the first image of each opens channels and loads everything
                await bench.timed(count)
            images = []
            for _ in range(rounds):
                images.append(await bench.timed(1, new_images=True))
                images += [await bench.timed(count) for count in counts]
    names = ["worker", *(one.name for one in subject.controlnets)]
    traces.mkdir(parents=True, exist_ok=True)
    shown = json.dumps(trace_events(images[-1], names))
    (traces / f"controlnet_parallel-{name.replace(',', '').replace(' ', '-')}.json").write_text(shown + "\n")
    return images


def figures_of(name: str, images: Sequence[TimedImage]) -> list[Figure]:
    """Return the share of the ideal first, then its terms."""
    anew = [image for image in images if image.new_images]
    images = [image for image in images if not image.new_images]
    one, free = ([image for image in images if image.control_count == count] for count in (1, 0))
    share = [image.share_of_ideal for image in one]
    steady = [image.steady_share for image in one]
    target = at_least(TARGETS[name]) if name in TARGETS else informative()
    figures = [
        measured(f"{name}: 1C as a share of the ideal, the whole stage", share, median, target),
        measured(f"{name}: 1C as a share of the ideal, its streams open", steady, median, target),
        measured(
            f"{name}: 1C as a share of the ideal, the whole stage, of an image that is new",
            [image.share_of_ideal for image in anew],
            median,
            informative(),
        ),
        _speed_up(name, "speed-up of 1C over C + E + D", [image.serial_step_s / image.steady_s for image in one]),
        _speed_up(name, "the ideal", [image.serial_step_s / image.ideal_step_s for image in one]),
    ]
    three = [image for image in images if image.control_count == 3]
    if three:
        pairs = [(many.denoise_s, single.denoise_s) for many, single in zip(three, one, strict=True)]
        figures.append(measured(f"{name}: 3C over 1C", pairs, median_ratio, at_most(1.10)))
    for label, group in (("0C", free), ("1C", one), ("3C", three)):
        if group:
            seconds = [image.device_s for image in group]
            figures.append(measured(f"{name}: device-seconds a picture, {label}", seconds, median, informative("s")))
    return figures


def _speed_up(name: str, what: str, values: Sequence[float]) -> Figure:
    return measured(f"{name}: {what}", values, median, informative("x"))


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subject", choices=[*SUBJECTS], action="append", help="only these (default: all)")


def main() -> int:
    options: Options = parse_options("controlnet_parallel", __doc__, _own_options)
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    rounds, figures = 2 if options.quick else 7, list[Figure]()
    for name in options.rest["subject"] or SUBJECTS:
        few = min(rounds, 3) if name == "sd15-size" else rounds
        images = asyncio.run(images_of(name, few, options.quick, cores, TRACES))
        figures += figures_of(name, images)
    return publish(options, figures, notes={"threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
