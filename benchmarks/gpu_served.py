"""Request images of full-size models with random weights from the whole suite over gRPC, with its worker on the GPU,
and from diffusers' pipelines in the row's process without any server (rows of `gpu_rows`).
"""

import asyncio
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image

from benchmarks.gpu_checkpoints import saved_pipeline
from benchmarks.gpu_networks import SIZES
from benchmarks.gpu_pictures import COMPILED_PEER, GUIDANCE_SCALE, PEER, TINY_STEPS, compiled_peer
from benchmarks.gpu_setup import GpuSetup, RowResult, name_of, reason_of
from lab.runs.measure import Figure, at_most, informative, measured
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.supervisor.local import local_suite

OURS = "ours, served"
LONE_ROUNDS, BUSY_ROUNDS = 10, 3
# The compiled pipeline's batch; the suite gets twice as many concurrent requests.
BATCH = 8
STAGES = tuple(f"worker.{stage}" for stage in ("queue", "prepare", "denoise", "decode", "encode"))
# steps of a large model, and of a distilled one
STEPS = (30, 4)

# Generate that many images, and return when all are PNG files.
Generate = Callable[[int], object]


def served_row(setup: GpuSetup, network: str) -> RowResult:
    """Time one image at a time, and full throughput: the whole suite against a bare pipeline at its best."""
    result, size, dtype = RowResult(), SIZES[network, setup.tiny], setup.dtypes()[0]
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder, ThreadPoolExecutor(BATCH) as files:
        pipeline = saved_pipeline(setup, size, dtype, Path(folder) / "model", whole=True)
        pipelines = {PEER: pipeline}
        try:
            pipelines[COMPILED_PEER] = compiled_peer(setup, pipeline)
        except (PentimentoError, RuntimeError) as error:
            result.not_run[f"{size.name}: {COMPILED_PEER}"] = reason_of(error)
        with _served(setup, Path(folder) / "model") as ours:
            for steps in (TINY_STEPS,) if setup.tiny else STEPS:
                name = f"{size.name}, {steps} steps, {name_of(dtype)}"
                ways: dict[str, Generate] = {OURS: partial(ours.generate, steps=steps)}
                for peer, piped in pipelines.items():
                    ways[peer] = _piped(piped, steps, files)
                result.figures += _figures(setup, f"{name}, one alone", ours, ways, 1, LONE_ROUNDS)
                result.figures += _figures(setup, f"{name}, as many as go", ours, ways, 4 * BATCH, BUSY_ROUNDS)
    return result


def _figures(
    setup: GpuSetup, name: str, ours: "ServedImages", ways: Mapping[str, Generate], image_count: int, rounds: int
) -> list[Figure]:
    """Time `image_count` images by every way, alternating."""
    ours.seen.clear()
    limited = replace(setup, rounds=min(setup.rounds, rounds))
    times = limited.interleaved({way: partial(generate, image_count) for way, generate in ways.items()})
    figures = []
    for peer in times.keys() - {OURS}:
        ratios = [mine / theirs for mine, theirs in zip(times[OURS], times[peer], strict=True)]
        target = at_most(1.0, "x") if peer == COMPILED_PEER else informative("x")
        figures.append(measured(f"{name}: {OURS} / {peer}", ratios, median, target))
    for way, taken in times.items():
        each = [one / image_count for one in taken]
        figures.append(measured(f"{name}: {way}, each", each, median, informative("ms")))
    stages = ours.stages()
    figures += [measured(f"{name}: {OURS}: {stage}", stages[stage], median, informative("ms")) for stage in stages]
    return figures


class ServedImages:
    """Request images of a running suite; `seen` are the finished ones."""

    def __init__(self, runner: asyncio.Runner, client: AsyncClient) -> None:
        self._runner = runner
        self._client = client
        self._numbers = count()
        self.seen: list[GeneratedImage] = []

    def generate(self, image_count: int, *, steps: int) -> None:
        self.seen += self._runner.run(self._generated(image_count, steps))

    async def _generated(self, image_count: int, steps: int) -> list[GeneratedImage]:
        places = asyncio.Semaphore(2 * BATCH)

        async def one() -> GeneratedImage:
            async with places:
                return await self._client.generate(self._request(steps))

        return await asyncio.gather(*(one() for _ in range(image_count)))

    def _request(self, steps: int) -> ImageRequest:
        number = next(self._numbers)
        return ImageRequest(
            f"a red circle, number {number}",
            num_inference_steps=steps,
            guidance_scale=GUIDANCE_SCALE,
            seed=number,
            cache=CacheMode.OFF,
        )

    def stages(self) -> dict[str, list[float]]:
        """Return milliseconds of each finished image, by its worker's stage."""
        found: dict[str, list[float]] = {stage: [] for stage in STAGES}
        for image in self.seen:
            for timing in image.provenance.timings:
                if timing.stage in found:
                    found[timing.stage].append(timing.duration_ms)
        return {stage: taken for stage, taken in found.items() if taken}


@contextmanager
def _served(setup: GpuSetup, model: Path) -> Iterator[ServedImages]:
    flags = ("--model", str(model), "--device", setup.device.type)
    with local_suite(flags) as suite, asyncio.Runner() as runner:
        client = runner.run(_client(suite.endpoint.public))
        try:
            yield ServedImages(runner, client)
        finally:
            runner.run(client.close())


async def _client(address: str) -> AsyncClient:
    """Open the client on the loop that will use it."""
    return AsyncClient(address)


def _piped(pipeline: Any, step_count: int, files: ThreadPoolExecutor) -> Generate:
    """Run a pipeline in batches of the same size; files are encoded during the next batch."""
    numbers = count()

    def batch(image_count: int) -> Sequence[Any]:
        found = [next(numbers) for _ in range(image_count)]
        images: torch.Tensor = pipeline(
            [f"a red circle, number {number}" for number in found],
            num_inference_steps=step_count,
            guidance_scale=GUIDANCE_SCALE,
            generator=[torch.Generator().manual_seed(number) for number in found],
            output_type="pt",
        ).images
        rows = (images.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
        return [files.submit(_file, row) for row in rows]

    def generate(image_count: int) -> None:
        made = [one for first in range(0, image_count, BATCH) for one in batch(min(BATCH, image_count - first))]
        for one in made:
            one.result()

    return generate


def _file(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
