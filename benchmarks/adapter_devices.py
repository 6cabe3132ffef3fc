"""Compare images with m ControlNets and n LoRAs on 1 to 8 devices with diffusers on one (Katz, Fig. 14, section 9.6).

A pair of workers computes half of the guidance each, under two replicas of each ControlNet: 2, 4, 6 and 8 devices for 0
to 3 ControlNets. Devices are paced: by Katz's times of SDXL, where diffusers' seconds are the published ones, and by
the zoo's, measured in this run by diffusers' pipelines. They are slowed so that eight devices' processes fit two cores,
and all times are divided by that again. A request with ControlNets stays in a pair from its first step on, so it waits
for its LoRAs; without ControlNets they load during the first steps. The leader loads them for every image; the peer has
them, as the dataplane requires.

*On cores* the devices are this machine's two cores and everything is real: the zoo, and a network with SDXL's widths
and random weights, one residual and one transformer layer in each block, 256 pixels. A ControlNet, or the other half of
the guidance, runs on the second core.

An image's devices are reserved for it in "images per device-minute"; in "device-seconds" only their computation counts,
as for ControlNets that other requests use too. SDXL's own size needs 10 GB for the UNet and 5 GB for each ControlNet in
this precision, twice for a pair, and minutes per step: it does not fit this machine.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.adapter_sides import (
    RealModel,
    StepTimes,
    diffusers_images,
    generated_from_base,
    next_of,
    reference_seconds,
    zoo_model,
    zoo_pace,
)
from benchmarks.latent_parallel import paired_steps
from benchmarks.lora_patch import ENDS, RANK
from benchmarks.papers.constants import KATZ_LATENCIES
from lab.emulation.pace import DevicePace, read_pace, slowed, write_pace
from lab.emulation.paced_controlnets.wiring import paced_controlnet_digest
from lab.emulation.paced_worker.loras import paced_digest
from lab.fixtures.controlnet_serving import (
    PACED,
    REAL,
    ControlledByService,
    ServedControlNet,
    register,
    replica_process,
    serving_together,
    shared_folder,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.full_size import FULL_SIDE_PX, write_shallow_xl_checkpoint, write_shallow_xl_controlnet
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.fixtures.worker_process import worker_process
from lab.runs.intervals import median_ratio
from lab.runs.measure import Figure, at_least, at_most, informative, measured
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import digest_lora, layers_of
from pentimento.domain.generation import ControlNetSelection, LoraSelection, Scheduler

SLOWNESS = 3.0
# Any scale above 1: the paced profile of SDXL is of images without guidance.
GUIDANCE_SCALE = 5.0
XL_STEPS = 4
KATZ_SPEED_UP, KATZ_DEVICE_MINUTE, MOST_RATIO = 7.8, 1.7, 1.15
FLAGS = ("--max-batch", "1")


@dataclass(frozen=True)
class DeployedKind:
    """Count an image's ControlNets and LoRAs; a pair of workers doubles the devices."""

    controlnets: int
    loras: int
    is_paired: bool = True

    @property
    def name(self) -> str:
        """Return "mCnL"."""
        return f"{self.controlnets}C{self.loras}L"

    @property
    def devices(self) -> int:
        """Return the number of devices: each worker's and each replica's."""
        return (2 if self.is_paired else 1) * (1 + self.controlnets)


PACED_KINDS = [
    *(DeployedKind(controlnets, loras) for controlnets in range(4) for loras in range(3)),
    *(DeployedKind(0, loras, is_paired=False) for loras in range(3)),
    DeployedKind(3, 2, is_paired=False),
]
CORE_KINDS = [
    *(DeployedKind(0, loras, is_paired) for loras in range(3) for is_paired in (False, True)),
    *(DeployedKind(1, loras, is_paired=False) for loras in range(3)),
]
QUICK_KINDS = [DeployedKind(0, 0), DeployedKind(3, 0), DeployedKind(3, 2), DeployedKind(0, 2, is_paired=False)]
FEW_CORE_KINDS = [DeployedKind(0, 0, is_paired=False), DeployedKind(0, 2), DeployedKind(1, 2, is_paired=False)]


@dataclass(frozen=True)
class OurImage:
    """Store one image's seconds, and the share of its steps that two workers computed."""

    seconds: float
    paired_share: float


@dataclass(frozen=True)
class Devices:
    """Hold a worker with its ControlNets, alone and with a peer; its images' settings; LoRAs in turns, each with the
    last step that may run without it."""

    alone: ControlledByService
    paired: ControlledByService
    case: Case
    side_px: int
    turns: Iterator[tuple[LoraSelection, int]]

    async def image(self, kind: DeployedKind) -> OurImage:
        """Generate one image."""
        together = self.paired if kind.is_paired else self.alone
        chosen = next_of(self.turns, kind.loras)
        waits = kind.is_paired and kind.controlnets > 0
        patch_step = 0 if waits else min((step for _, step in chosen), default=0)
        conditions = [torch.zeros(1, 3, self.side_px, self.side_px)] * max(kind.controlnets, 1)
        seconds, result = await generated_from_base(
            together, self.case, conditions, kind.controlnets, [lora for lora, _ in chosen], patch_step
        )
        return OurImage(seconds, paired_steps(result.notes) / self.case.steps)


@asynccontextmanager
async def paced_devices(path: Path) -> AsyncIterator[Devices]:
    """Start a pair of paced workers and two replicas of each ControlNet, and stop them at the end."""
    pace = read_pace(path)
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        served = []
        for number, controlnet in enumerate(pace.controlnets):
            flags = ("--controlnets", str(path), "--prefetch", controlnet.name)
            first, second = (
                stack.enter_context(replica_process(folder, f"c{number}-{copy}", PACED, *flags)) for copy in range(2)
            )
            selection = ControlNetSelection(controlnet.name, b"", digest=paced_controlnet_digest(controlnet))
            served.append(ServedControlNet(selection, first, (second,)))
        shared = (*FLAGS, "--shared-memory-dir", str(folder / "shared"))
        module = "lab.emulation.paced_worker"
        leader = stack.enter_context(worker_process(path, *shared, "--lora-memory-mib", "0", module=module))
        peer = stack.enter_context(worker_process(path, *shared, module=module))
        case = Case("a red circle", "", Scheduler.EULER, 1, pace.steps, pace.guidance_scale)
        loras = [
            (LoraSelection(lora.name, 1.0, paced_digest(lora)), int(lora.latest_start_fraction * pace.steps))
            for lora in pace.loras
        ]
        async with serving_together(peer, ()), serving_together(leader, served) as alone:
            paired = alone.with_peer("peer", peer)
            yield Devices(alone, paired, case, pace.width_px, itertools.cycle(loras))


@asynccontextmanager
async def core_devices(model: RealModel, cores: Sequence[int]) -> AsyncIterator[Devices]:
    """Start a worker on the first core, its peer and a replica of the ControlNet service on the second."""
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        (selection,) = register(folder, model.controlnets[:1])
        flags = ("--controlnets", str(folder / "registry.json"), "--prefetch", selection.name)
        replica = stack.enter_context(replica_process(folder, "c0", REAL, *flags, core=cores[1]))
        loras = [(_copied(file, folder / "loras" / f"lora-{number}"), 0) for number, file in enumerate(model.loras)]
        shared = ("--shared-memory-dir", str(folder / "shared"), "--adapters-dir", str(folder / "loras"))
        own = (*FLAGS, *shared, "--dtype", "float32")
        leader = worker_process(model.checkpoint, *own, "--lora-memory-mib", "0", core=cores[0])
        address = stack.enter_context(leader)
        peer = stack.enter_context(worker_process(model.checkpoint, *own, core=cores[1]))
        case = Case("a red circle", "", Scheduler.DDIM, 1, model.steps, model.guidance_scale)
        served = [ServedControlNet(selection, replica)]
        async with serving_together(peer, ()), serving_together(address, served) as alone:
            yield Devices(alone, alone.with_peer("peer", peer), case, model.side_px, itertools.cycle(loras))


def _copied(file: Path, folder: Path) -> LoraSelection:
    folder.mkdir(parents=True)
    copied = Path(shutil.copy(file, folder))
    return LoraSelection(folder.name, 1.0, digest_lora(copied))


async def images_of(devices: Devices, kinds: Sequence[DeployedKind], rounds: int) -> dict[DeployedKind, list[OurImage]]:
    """Return the images of each kind, with the kinds alternating. At first those with the most LoRAs run once, which
    opens channels and loads everything."""
    for kind in kinds:
        if kind.loras == max(one.loras for one in kinds):
            await devices.image(kind)
    found: dict[DeployedKind, list[OurImage]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            found[kind].append(await devices.image(kind))
    return found


async def paced_images(
    pace: DevicePace, kinds: Sequence[DeployedKind], rounds: int
) -> dict[DeployedKind, list[OurImage]]:
    """Return the images of slowed paced devices, with the pace's own seconds."""
    with shared_folder() as folder:
        write_pace(folder / "pace.toml", slowed(pace, SLOWNESS))
        async with paced_devices(folder / "pace.toml") as devices:
            found = await images_of(devices, kinds, rounds)
    return {
        kind: [replace(image, seconds=image.seconds / SLOWNESS) for image in images] for kind, images in found.items()
    }


def busy_s(pace: DevicePace, kind: DeployedKind) -> float:
    """Return the seconds that an image's devices compute, by the pace."""
    workers, rows = (2, 1) if kind.is_paired else (1, 2)
    own = pace.steps * (pace.encode.of(rows) + pace.decode.of(rows)) + (pace.patch_s if kind.loras else 0.0)
    controlled = sum(one.step.of(rows) for one in pace.controlnets[: kind.controlnets])
    return workers * (own + pace.steps * controlled) + pace.picture_s


def paced_figures(
    pace: DevicePace,
    images: Mapping[DeployedKind, Sequence[OurImage]],
    theirs: Mapping[str, Sequence[float]],
    *,
    has_targets: bool = False,
) -> Iterator[Figure]:
    """Yield each kind's latency and images per device-minute against diffusers', and its device-seconds. With
    `has_targets`, the kind with the most adapters has Katz's figures as targets."""
    most = DeployedKind(3, 2)
    pairs = [(one.seconds, none.seconds) for one, none in zip(images[most], images[DeployedKind(0, 0)], strict=True)]
    limit = at_most(MOST_RATIO) if has_targets else informative()
    yield measured(f"{pace.name}: 3C2L over 0C0L, in pairs", pairs, median_ratio, limit)
    for kind, group in images.items():
        where, wanted = f"{pace.name}: {kind.name} on {kind.devices}", has_targets and kind == most
        yield from compared(where, kind, group, theirs[kind.name], KATZ_SPEED_UP if wanted else None)
        if has_most(kind):
            yield Figure(f"{where}: device-seconds", busy_s(pace, kind), informative("s"))
            ratio = median(theirs[kind.name]) / busy_s(pace, kind)
            limit = at_least(KATZ_DEVICE_MINUTE, "x") if wanted else informative("x")
            yield Figure(f"{where}: images per busy device-minute ÷ diffusers'", ratio, limit)
    shares = [image.paired_share for kind, group in images.items() if kind.is_paired for image in group]
    name = f"{pace.name}: least share of a pair's steps that were paired"
    yield Figure(name, min(shares), informative(), len(shares))


def has_most(kind: DeployedKind) -> bool:
    """Return whether the kind has the most adapters: the others' figures of
    devices follow from their latency and the pace."""
    return (kind.controlnets, kind.loras) == (3, 2)


def compared(
    where: str, kind: DeployedKind, ours: Sequence[OurImage], theirs: Sequence[float], speed_up: float | None = None
) -> Iterator[Figure]:
    """Yield diffusers' latency ÷ ours, and the images per minute of a device that is reserved for them."""
    known = theirs if len(theirs) == len(ours) else [median(theirs)] * len(ours)
    pairs = [(their_s, image.seconds) for their_s, image in zip(known, ours, strict=True)]
    target = informative("x") if speed_up is None else at_least(speed_up, "x")
    yield measured(f"{where}: diffusers' latency ÷ ours", pairs, median_ratio, target)
    reserved = [(their_s, kind.devices * seconds) for their_s, seconds in pairs]
    if has_most(kind):
        yield measured(f"{where}: images per device-minute ÷ diffusers'", reserved, median_ratio, informative("x"))


async def core_images(
    model: RealModel, kinds: Sequence[DeployedKind], rounds: int
) -> dict[DeployedKind, list[OurImage]]:
    """Return the images of a real model on this machine's first two cores."""
    async with core_devices(model, sorted(os.sched_getaffinity(0))[:2]) as devices:
        return await images_of(devices, kinds, rounds)


def core_figures(
    model: RealModel, images: Mapping[DeployedKind, Sequence[OurImage]], theirs: Mapping[str, Sequence[float]]
) -> Iterator[Figure]:
    """Yield each kind's latency and images per device-minute against diffusers'."""
    for kind, group in images.items():
        where = f"{model.name}, on cores: {kind.name} on {kind.devices}"
        yield from compared(where, kind, group, theirs[kind.name])


def shallow_xl(folder: Path) -> RealModel:
    """Write the model with SDXL's widths, its ControlNet, and two LoRAs of its UNet."""
    checkpoint = write_shallow_xl_checkpoint(folder / "model")
    controlnet = write_shallow_xl_controlnet(folder / "controlnet")
    network = load_model(checkpoint, torch.device("cpu"), torch.float32)
    base = layers_of(network.info.family, network.adaptable)
    files = [
        write_diffusers_lora(folder / f"lora-{seed}", random_factors(base, rank=RANK, seed=seed, ends=ENDS), alpha=8.0)
        for seed in range(2)
    ]
    return RealModel("SDXL's widths", checkpoint, (controlnet,), tuple(files), FULL_SIDE_PX, XL_STEPS, GUIDANCE_SCALE)


def device_figures(starts: Sequence[float], sdxl: DevicePace, *, quick: bool) -> list[Figure]:
    """Return the figures of SDXL's published pace, of the zoo's with LoRAs late by `starts`, and of both real
    models on cores."""
    rounds, kinds, zoo = 1 if quick else 3, QUICK_KINDS if quick else PACED_KINDS, zoo_model()
    images = diffusers_images(zoo, counts_of(kinds + CORE_KINDS), rounds, without_guidance=[(0, 0), (3, 0)])
    theirs, pace = reference_seconds(images), zoo_pace(StepTimes.of(images, zoo.steps), starts)
    guided = replace(sdxl, guidance_scale=GUIDANCE_SCALE)
    published = {name: [seconds] for name, (seconds, _, _) in KATZ_LATENCIES.items()}
    known = [kind for kind in kinds if kind.name in published]
    figures = [
        *paced_figures(guided, asyncio.run(paced_images(guided, known, rounds)), published, has_targets=True),
        *paced_figures(pace, asyncio.run(paced_images(pace, kinds, rounds)), theirs),
        *core_figures(zoo, asyncio.run(core_images(zoo, CORE_KINDS, rounds)), theirs),
    ]
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        model = shallow_xl(Path(folder))
        seconds = reference_seconds(diffusers_images(model, counts_of(FEW_CORE_KINDS), 1))
        figures += core_figures(model, asyncio.run(core_images(model, FEW_CORE_KINDS, 1)), seconds)
    return figures


def counts_of(kinds: Sequence[DeployedKind]) -> list[tuple[int, int]]:
    """Return the kinds' numbers of ControlNets and LoRAs, each once."""
    return [*dict.fromkeys((kind.controlnets, kind.loras) for kind in kinds)]
