"""Compare an image's latency on two workers, each with a half of its guidance, with one worker's.

    python -m benchmarks.latent_parallel

Each of two worker processes has one core. The same image runs on the first worker, on both, and on the first without
guidance, alternating. The most that a pair can gain is t(both halves in one batch) / t(one half), from the first and
the third run of the same round (Katz, section 7: 1.4 to 1.9 times, by GPU and model). The figure is the speed-up as a
share of that ceiling. Times are those of the denoising stage, with opening of the stream and all transport.
Core-seconds are the processor time of both processes.

Subjects: the zoo's tiny-heavy, 50 steps; a network of Stable Diffusion 1.5's size with random weights, float32, 256
pixels, 4 steps; SDXL under a ControlNet by paced devices, where compute sleeps: two workers and two replicas, 50 steps.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc.aio
from PIL import Image
from torch import Tensor

from lab.fixtures.controlnet_serving import PACED, ServedControlNet, replica_process, shared_folder
from lab.fixtures.full_size import FULL_SIDE_PX, write_full_size_checkpoint
from lab.fixtures.worker_process import START_S, start_on
from lab.fixtures.worker_under_test import png_of
from lab.runs.machine import ROOT
from lab.runs.measure import (
    Figure,
    Options,
    at_least,
    at_most,
    drawn_orders,
    informative,
    measured,
    parse_options,
    publish,
)
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.controlnet import ControlNetClient
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, ControlNetSelection, FromNoise, GenerationSpec, Route, Scheduler
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.cuda import tensor_over
from pentimento.wire.codec import encode
from pentimento.wire.tensors import tensor_from_proto
from zoo.registry import WEIGHTS

TARGETS = {"zoo": 0.85, "sd15-size": 0.93, "sdxl-controlled": 0.85}
SDXL, CONTROLNET = ROOT / "scenarios" / "paces" / "sdxl-h800.toml", "canny"
# the change of an image that its batch's composition may cause (ADR 0009)
TOLERANCE = 1e-4
ARMS = ("alone", "pair", "half")
FLAGS = ("--device", "cpu", "--max-batch", "1", "--log-level", "warning")
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class PairSubject:
    """Describe a model and its image; with a ControlNet the model is a pace."""

    name: str
    model: Path
    side_px: int
    steps: int
    rounds: int
    controlnet: str = ""


@dataclass(frozen=True)
class PairImage:
    """Store one image: seconds of its denoising stage, processor seconds of both processes, number of paired steps."""

    denoise_s: float
    core_s: float
    paired_steps: int


@dataclass(frozen=True)
class PairRound:
    """Store one image by each arm, and the largest difference of the pair's latents from one worker's."""

    alone: PairImage
    pair: PairImage
    half: PairImage
    difference: float

    @property
    def speed_up(self) -> float:
        """Return the pair's speed-up over one worker."""
        return self.alone.denoise_s / self.pair.denoise_s

    @property
    def ceiling(self) -> float:
        """Return the ceiling of any pair: both halves in one batch over one half."""
        return self.alone.denoise_s / self.half.denoise_s


class PairBench:
    """Hold two running workers."""

    def __init__(
        self,
        subject: PairSubject,
        processes: Sequence["subprocess.Popen[bytes]"],
        leader: grpc.aio.Channel,
        held: pb.HeldModel,
        peer: str,
        replicas: Sequence[ServedControlNet] = (),
    ) -> None:
        self._replicas = tuple(replicas)
        self._subject = subject
        self._stub = UnetWorkerServiceStub(leader)
        self._held = held
        self._processes = processes
        self._peer = peer
        self._numbers = itertools.count(1)

    async def round(self, turn: int) -> PairRound:
        """Run each arm, in a drawn order."""
        arms: dict[str, PairImage] = {}
        latents: dict[str, Tensor] = {}
        (order,) = drawn_orders(ARMS, 1, seed=turn)
        for name in order:
            arms[name], latents[name] = await self._generate(name)
        difference = float((latents["pair"] - latents["alone"]).abs().max())
        return PairRound(**arms, difference=difference)

    async def _generate(self, arm: str) -> tuple[PairImage, Tensor]:
        subject, held, number = self._subject, self._held, next(self._numbers)
        spec = GenerationSpec(
            prompt="a red circle",
            negative_prompt="blurred",
            model=held.model,
            width_px=subject.side_px,
            height_px=subject.side_px,
            num_inference_steps=subject.steps,
            guidance_scale=1.0 if arm == "half" else 3.0,
            scheduler=Scheduler.DDIM,
            seed=3,
            controlnets=tuple(one.selection for one in self._replicas[:1]),
        )
        request = pb.ExecuteRequest(
            attempt=encode(Attempt(f"pair-{number}", 1, number, "bench", 1, "bench"), generation_pb2.Attempt),
            spec=encode(spec, generation_pb2.GenerationSpec),
            route=encode(Route("pair", FromNoise(), held.model, held.model_digest), generation_pb2.Route),
            worker_generation=held.worker_generation,
            controlnet_endpoints=[
                pb.ControlNetEndpoint(name=one.selection.name, address=one.address) for one in self._replicas
            ],
            return_latents=True,
        )
        if arm == "pair":
            request.latent_parallel_peer.worker_id, request.latent_parallel_peer.address = "peer", self._peer
        before_s = self._core_s()
        *_, last = [answer async for answer in self._stub.Execute(request)]
        result = last.result
        (denoise_ms,) = [timing.duration_ms for timing in result.timings if timing.stage == "denoise"]
        image = PairImage(denoise_ms / 1000, self._core_s() - before_s, paired_steps(result.notes))
        return image, tensor_over(tensor_from_proto(result.final_latents))

    def _core_s(self) -> float:
        """Return the processor seconds of both processes so far."""
        ticks = 0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _CLOCK_TICKS


def paired_steps(notes: Sequence[str]) -> int:
    """Parse the worker's note: "generated by two workers: 48 of 50 steps with …"."""
    return next((int(note.split()[4]) for note in notes if note.startswith("generated by two workers: ")), 0)


@dataclass(frozen=True)
class StartedPair:
    """Hold two worker processes, their addresses, and those of the ControlNet replicas, if any."""

    processes: list["subprocess.Popen[bytes]"]
    addresses: list[str]
    replicas: list[str]


@contextmanager
def workers(subject: PairSubject, cores: Sequence[int]) -> Iterator[StartedPair]:
    """Start the workers, one on each core."""
    module = "lab.emulation.paced_worker" if subject.controlnet else "services.unet_worker"
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        started = StartedPair([], [], [])
        for number, core in enumerate(cores):
            address = f"unix:{folder}/w{number}"
            command = [sys.executable, "-m", module, "--model", str(subject.model)]
            command += ["--listen", address, "--objects-url", f"file://{folder}/objects"]
            command += ["--shared-memory-dir", str(folder / "shared"), *FLAGS]
            process = stack.enter_context(start_on(core, command))
            stack.callback(process.terminate)
            started.processes.append(process)
            started.addresses.append(address)
            if subject.controlnet:
                flags = ("--controlnets", str(subject.model), "--prefetch", subject.controlnet)
                replica = replica_process(folder, f"c{number}", PACED, *flags, core=core)
                started.replicas.append(stack.enter_context(replica))
        yield started


async def measure(subject: PairSubject, cores: Sequence[int]) -> list[PairRound]:
    with workers(subject, cores) as started:
        async with AsyncExitStack() as stack:
            settings, addresses = RpcChannelSettings(), started.addresses
            leader, peer = [await stack.enter_async_context(open_channel(one, settings)) for one in addresses]
            held, _ = await _held(WorkerClient(leader)), await _held(WorkerClient(peer))
            replicas = [await _served(subject, address) for address in started.replicas]
            bench = PairBench(subject, started.processes, leader, held, addresses[1], replicas)
            # opens connections, fills caches
            await bench.round(0)
            return [await bench.round(turn) for turn in range(subject.rounds)]


async def _held(worker: WorkerClient) -> pb.HeldModel:
    """Return the worker's model, once it serves."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return (await worker.status(1.0)).held
            except PentimentoError:
                await asyncio.sleep(0.2)


async def _served(subject: PairSubject, address: str) -> ServedControlNet:
    """Return a replica's ControlNet and its control image, once loaded."""
    image = png_of(Image.new("RGB", (subject.side_px, subject.side_px)))
    async with open_channel(address, RpcChannelSettings()) as channel, asyncio.timeout(START_S):
        while True:
            with suppress(PentimentoError):
                for info in (await ControlNetClient(channel).status(1.0)).controlnets:
                    if info.name == subject.controlnet and info.resident:
                        return ServedControlNet(ControlNetSelection(info.name, image, digest=info.digest), address)
            await asyncio.sleep(0.2)


def figures_of(name: str, rounds: Sequence[PairRound], steps: int) -> list[Figure]:
    paired = [one.pair.paired_steps / steps for one in rounds]
    shares = [one.speed_up / one.ceiling for one in rounds]
    dearer = [one.pair.core_s / one.alone.core_s for one in rounds]
    return [
        measured(f"{name}: speed-up / ceiling", shares, median, at_least(TARGETS[name])),
        measured(f"{name}: largest difference", [one.difference for one in rounds], max, at_most(TOLERANCE)),
        measured(f"{name}: speed-up", [one.speed_up for one in rounds], median, informative("x")),
        measured(f"{name}: ceiling", [one.ceiling for one in rounds], median, informative("x")),
        # A worker that measured no gain from pairs works alone; then these figures say nothing about pairs.
        measured(f"{name}: steps that were paired", paired, median, informative()),
        measured(f"{name}: core-seconds of a pair / of one", dearer, median, informative("x")),
        measured(f"{name}: core-seconds of a pair", [one.pair.core_s for one in rounds], median, informative("s")),
        measured(f"{name}: core-seconds of one", [one.alone.core_s for one in rounds], median, informative("s")),
    ]


def subjects(options: Options, folder: Path) -> Iterator[PairSubject]:
    quick, chosen = options.quick, options.rest["subject"]
    if chosen in ("zoo", None):
        yield PairSubject("zoo", WEIGHTS / "tiny-heavy", 64, 50, 3 if quick else 30)
    if chosen in ("sd15-size", None):
        model = write_full_size_checkpoint(folder / "model")
        yield PairSubject("sd15-size", model, FULL_SIDE_PX, 4, 1 if quick else 5)
    if chosen in ("sdxl-controlled", None):
        yield PairSubject("sdxl-controlled", SDXL, 1024, 50, 1 if quick else 10, CONTROLNET)


def add_subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subject", choices=sorted(TARGETS), help="measure only one")


def main() -> int:
    options = parse_options("latent_parallel", __doc__, add_subject)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        for subject in subjects(options, Path(folder)):
            rounds = asyncio.run(measure(subject, cores))
            figures += figures_of(subject.name, rounds, subject.steps)
    return publish(options, figures, notes={"threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
