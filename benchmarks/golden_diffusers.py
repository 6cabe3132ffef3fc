"""The worker's latents against diffusers' own pipelines: same weights, seed and scheduler, float32 on the CPU.

A worker process is asked over gRPC to return its final latents; StableDiffusionPipeline and its img2img sibling run in
this process. The figure is the largest absolute difference of any element in any case.
"""

import argparse
import asyncio
import io
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import torch
from PIL import Image

from benchmarks.report import Figure, Options, at_most, measured, parse_options, publish
from pentimento.clients.messages.generation import attempt_to_proto, route_to_proto, spec_to_proto
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, InitImage, Route, Scheduler
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.device import tensor_from_wire
from pentimento.tensors.wire import tensor_from_proto
from pentimento.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub

WEIGHTS = Path(__file__).parent.parent / "zoo" / "weights"
TARGET = at_most(1e-4)
START_S = 120.0


@dataclass(frozen=True)
class Case:
    """One picture; `strength` None is text to image."""

    prompt: str
    negative_prompt: str = ""
    scheduler: Scheduler = Scheduler.DDIM
    seed: int = 0
    steps: int = 20
    guidance_scale: float = 3.0
    eta: float = 0.0
    strength: float | None = None


PROMPTS = ("a red circle above a blue square", "three small green stars", "")


def all_cases(quick: bool) -> list[Case]:
    """Every scheduler with guidance off, moderate and strong, with and without a negative prompt, short and long."""
    steps, guidances = ((12,), (1.0, 3.0)) if quick else ((5, 20, 50), (1.0, 3.0, 7.5))
    painted = [
        Case(prompt, negative, scheduler, seed, count, guidance)
        for scheduler, count, guidance in itertools.product((Scheduler.DDIM, Scheduler.EULER), steps, guidances)
        for seed, (prompt, negative) in enumerate(zip(PROMPTS, ("", "blurred", "a circle"), strict=True))
    ]
    stochastic = [Case(PROMPTS[0], eta=eta, seed=11) for eta in (0.5, 1.0)]
    changed = [
        Case(PROMPTS[0], "blurred", scheduler, 21, 12 if quick else 30, guidance, strength=strength)
        for scheduler in (Scheduler.DDIM, Scheduler.EULER)
        for guidance in guidances
        for strength in (0.3, 0.8, 1.0)
    ]
    return painted + stochastic + changed


class DiffusersReference:
    """diffusers' pipelines over one checkpoint, as `from_pretrained` makes them."""

    def __init__(self, model: Path) -> None:
        from diffusers import DDIMScheduler, EulerDiscreteScheduler, StableDiffusionPipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        self._pipeline = StableDiffusionPipeline.from_pretrained(model, safety_checker=None, dtype=torch.float32)
        self._pipeline.set_progress_bar_config(disable=True)
        classes = {Scheduler.DDIM: DDIMScheduler, Scheduler.EULER: EulerDiscreteScheduler}
        self._schedulers = {
            scheduler: made.from_pretrained(model, subfolder="scheduler") for scheduler, made in classes.items()
        }

    def latents(self, case: Case, image: Image.Image) -> torch.Tensor:
        from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionPipeline

        kind = StableDiffusionPipeline if case.strength is None else StableDiffusionImg2ImgPipeline
        parts = {**self._pipeline.components, "scheduler": self._schedulers[case.scheduler]}
        pipeline = kind(**parts, requires_safety_checker=False)
        pipeline.set_progress_bar_config(disable=True)
        extra: dict[str, Any] = {"height": image.height, "width": image.width}
        if case.strength is not None:
            extra = {"image": image, "strength": case.strength}
        latents: torch.Tensor = pipeline(
            case.prompt,
            negative_prompt=case.negative_prompt,
            num_inference_steps=case.steps,
            guidance_scale=case.guidance_scale,
            eta=case.eta,
            generator=torch.Generator().manual_seed(case.seed),
            output_type="latent",
            **extra,
        ).images
        return latents


class WorkerUnderTest:
    """A worker that serves, asked for its final latents."""

    def __init__(self, channel: grpc.aio.Channel, held: pb.HeldModel) -> None:
        self._stub = UnetWorkerServiceStub(channel)
        self.held = held
        self._numbers = itertools.count(1)

    async def latents(self, case: Case, image: Image.Image) -> torch.Tensor:
        held, number = self.held, next(self._numbers)
        attempt = Attempt(f"golden-{number}", 1, number, "golden", 1, "golden")
        request = pb.ExecuteRequest(
            attempt=attempt_to_proto(attempt),
            spec=spec_to_proto(spec_of(case, held, image)),
            route=route_to_proto(Route("golden", FromNoise(), held.model, held.model_digest)),
            worker_generation=held.worker_generation,
            return_latents=True,
        )
        answers = [answer async for answer in self._stub.Execute(request)]
        return tensor_from_wire(tensor_from_proto(answers[-1].result.final_latents))


def spec_of(case: Case, held: pb.HeldModel, image: Image.Image) -> GenerationSpec:
    return GenerationSpec(
        prompt=case.prompt,
        negative_prompt=case.negative_prompt,
        model=held.model,
        width_px=image.width,
        height_px=image.height,
        num_inference_steps=case.steps,
        guidance_scale=case.guidance_scale,
        scheduler=case.scheduler,
        seed=case.seed,
        eta=case.eta,
        init_image=None if case.strength is None else InitImage(png_of(image), case.strength),
    )


def noise_image(width_px: int, height_px: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png_of(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


async def difference(worker: WorkerUnderTest, reference: DiffusersReference, case: Case) -> float:
    """Largest absolute difference of an element; infinite when one side is not finite."""
    image = noise_image(worker.held.default_width_px, worker.held.default_height_px)
    ours, theirs = await worker.latents(case, image), reference.latents(case, image)
    distance = (ours - theirs).abs().max().item()
    return distance if np.isfinite(distance) else float("inf")


@contextmanager
def worker_process(model: Path) -> Iterator[str]:
    """A worker over its own empty object store; its address."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        address = f"unix:{folder}/worker"
        flags = ["--model", str(model), "--objects-url", f"file://{folder}/objects", "--listen", address]
        command = [sys.executable, "-m", "services.unet_worker", *flags, "--device", "cpu", "--log-level", "warning"]
        with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            try:
                yield address
            finally:
                process.terminate()


async def compare(model: Path, cases: Sequence[Case]) -> list[tuple[Case, float]]:
    reference = DiffusersReference(model)
    with worker_process(model) as address:
        async with open_channel(address, RpcChannelSettings()) as channel:
            status = await await_serving(channel)
            worker = WorkerUnderTest(channel, status.held)
            return [(case, await difference(worker, reference, case)) for case in cases]


async def await_serving(channel: grpc.aio.Channel) -> pb.GetStatusResponse:
    """The worker answers its status once its model is warm."""
    stub = UnetWorkerServiceStub(channel)
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=START_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.2)


def figures_of(compared: Sequence[tuple[Case, float]]) -> list[Figure]:
    groups = {
        "max abs difference of the final latents": compared,
        "text to image": [pair for pair in compared if pair[0].strength is None],
        "from an image": [pair for pair in compared if pair[0].strength is not None],
    }
    return [measured(name, [value for _, value in pairs], max, TARGET) for name, pairs in groups.items()]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["tiny-heavy", "tiny-light"], help="names in zoo/weights")


def main() -> int:
    options: Options = parse_options("golden_diffusers", __doc__, add_options)
    torch.set_num_threads(1)
    cases = all_cases(options.quick)
    names = options.rest["models"][:1] if options.quick else options.rest["models"]
    compared = {name: asyncio.run(compare(WEIGHTS / name, cases)) for name in names}
    rows = [
        {"model": name, **asdict(case), "scheduler": case.scheduler.value, "difference": value}
        for name, pairs in compared.items()
        for case, value in pairs
    ]
    figures = figures_of([pair for pairs in compared.values() for pair in pairs])
    return publish(options, figures, notes={"dtype": "float32", "threads": 1, "cases": rows})


if __name__ == "__main__":
    raise SystemExit(main())
