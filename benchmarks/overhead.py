"""Measure the cost of the services: an image through all services, by our engine in one process, and by diffusers.

The engine in one process has only the worker's steps, decoder and encoder, so that its difference is the cost of
frontdoor, embedder, gateway, journal and stores. diffusers runs in inference mode without encoding. Compiled is
compared with compiled, and eager with eager.

A round requests the same prompt, seed and steps from every side, in a drawn order, all timed by this client's clock
from the call to the received image. Prompts never repeat, so that no cache helps; cache lookups run and must miss (the
gateway's threshold is a cosine of 1), and finished images are written to it. Each side has one torch thread in a
separate process. The pixels of a mode's sides must agree within one level of 255.
"""

import argparse
import asyncio
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from benchmarks.peers.image_process import ImageMaker, ImageOrder, image_process
from lab.runs.intervals import ratio_of_medians
from lab.runs.measure import Figure, at_most, drawn_orders, informative, measured, parse_options, publish
from pentimento.clients.gateway import GatewayClient
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import Client, ImageRequest
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import find_model

# Every lookup searches, and only the same prompt could hit. The five shares are the default's, so that the usual number
# of latents is captured and written.
NEVER_A_HIT = {
    "PENTIMENTO_VECTORDB_GATEWAY_THRESHOLDS": "latent:1:0.1,latent:1:0.2,latent:1:0.3,latent:1:0.4,latent:1:0.5"
}
# Images come one at a time: other sizes are not compiled, which takes a minute each.
ALONE = {"PENTIMENTO_UNET_WORKER_MAX_BATCH": "1"}
COMPILE = "PENTIMENTO_UNET_WORKER_COMPILE"
# the worker's setting in each mode
MODES = {"compiled": "compile", "eager": "off"}
SERVICES, ENGINE, DIFFUSERS = "services", "engine", "diffusers"
WARM_UP_ROUNDS = 3
STEPS = 50
GUIDANCE_SCALE = 3.0
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "diamond", "bar")

Generate = Callable[[ImageOrder], bytes]


@dataclass(frozen=True)
class TimedRound:
    """Store milliseconds by mode and side, and by mode the largest difference of a pixel's channel in levels of 255."""

    milliseconds: Mapping[tuple[str, str], float]
    pixel_differences: Mapping[str, int]


def main() -> int:
    options = parse_options("overhead", __doc__, add_options)
    count = 4 if options.quick else options.rest["rounds"]
    model = find_model(options.rest["model"]).path
    with ExitStack() as stack:
        suites = {mode: stack.enter_context(suite_of(model, mode)) for mode in MODES}
        sides = sides_of(stack, suites, model)
        every = [run_round(sides, number) for number in range(WARM_UP_ROUNDS + count)]
        for suite in suites.values():
            check_lookups(asyncio.run(cache_statistics(suite)), len(every))
    notes = {"model": options.rest["model"], "steps": STEPS, "guidance_scale": GUIDANCE_SCALE}
    notes |= {"torch_threads": 1, "warm_up_rounds": WARM_UP_ROUNDS}
    return publish(options, list(figures_of(every[WARM_UP_ROUNDS:])), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=60, help="rounds that are measured")
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")


def suite_of(model: Path, mode: str) -> Any:
    """Return a suite with a worker of that mode, to be entered."""
    flags = ["--model", str(model), "--device", "cpu", "--threads", "1"]
    return local_suite(flags, environment={**NEVER_A_HIT, **ALONE, COMPILE: MODES[mode]})


def sides_of(stack: ExitStack, suites: Mapping[str, LocalSuite], model: Path) -> dict[tuple[str, str], Generate]:
    """Return functions that make an image, by mode and side."""
    sides: dict[tuple[str, str], Generate] = {}
    for mode, suite in suites.items():
        client = stack.enter_context(Client(suite.endpoint.public))
        sides[mode, SERVICES] = through_services(client)
        for name, side in ((ENGINE, ImageMaker.ENGINE), (DIFFUSERS, ImageMaker.DIFFUSERS)):
            process = stack.enter_context(image_process(side, model, compiled=mode == "compiled"))
            sides[mode, name] = process.generate
    return sides


def through_services(client: Client) -> Generate:
    def generate(order: ImageOrder) -> bytes:
        steps = {"num_inference_steps": order.steps, "guidance_scale": order.guidance_scale}
        return client.generate(ImageRequest(order.prompt, seed=order.seed, **steps)).data  # type: ignore[arg-type]

    return generate


def order_of(number: int) -> ImageOrder:
    """Return another prompt for every number, so that no cache helps."""
    colour, shape = COLOURS[number % len(COLOURS)], SHAPES[number // len(COLOURS) % len(SHAPES)]
    prompt = f"a {colour} {shape}, number {number}"
    return ImageOrder(prompt, seed=1000 + number, steps=STEPS, guidance_scale=GUIDANCE_SCALE)


def run_round(sides: Mapping[tuple[str, str], Generate], number: int) -> TimedRound:
    """Call every side once, in a drawn order."""
    order = order_of(number)
    images: dict[tuple[str, str], bytes] = {}
    milliseconds: dict[tuple[str, str], float] = {}
    (names,) = drawn_orders(sides, 1, seed=number)
    for name in names:
        began = time.perf_counter()
        images[name] = sides[name](order)
        milliseconds[name] = (time.perf_counter() - began) * 1000
    differences = {
        mode: max(pixel_difference(images[mode, SERVICES], images[mode, side]) for side in (ENGINE, DIFFUSERS))
        for mode in MODES
    }
    return TimedRound(milliseconds, differences)


def pixel_difference(first: bytes, second: bytes) -> int:
    """Return the largest difference of two image files in levels of 255. Raises RuntimeError for different sizes."""
    with Image.open(io.BytesIO(first)) as ours, Image.open(io.BytesIO(second)) as theirs:
        if ours.size != theirs.size:
            raise RuntimeError(f"ours is {ours.size}, theirs {theirs.size}: not the same image")
        channels = ImageChops.difference(ours.convert("RGB"), theirs.convert("RGB")).getextrema()
        return max(int(high) for _, high in channels)  # type: ignore[misc]


async def cache_statistics(suite: LocalSuite) -> dict[str, int]:
    async with open_channel(suite.endpoint.gateway, RpcChannelSettings()) as channel:
        found = await GatewayClient(channel).statistics()
    return {"lookups": found.lookup_count, "hits": found.hit_count, "entries": found.entry_count}


def check_lookups(cache: Mapping[str, int], images: int) -> None:
    """Raise RuntimeError unless every image looked up and missed."""
    if cache["lookups"] < images or cache["hits"]:
        raise RuntimeError(f"every image must look up and miss, got {cache} for {images} images")


def figures_of(rounds: Sequence[TimedRound]) -> Iterator[Figure]:
    """Yield the services' cost over either side of each mode, and all medians."""
    for mode in MODES:
        for side in (ENGINE, DIFFUSERS):
            pairs = [(one.milliseconds[mode, SERVICES], one.milliseconds[mode, side]) for one in rounds]
            name = f"{mode}: services ÷ {side}{' in one process' if side == ENGINE else ''}"
            yield measured(name, pairs, ratio_of_medians, at_most(1.05, "x"))
        pairs = [(one.milliseconds[mode, SERVICES], one.milliseconds[mode, ENGINE]) for one in rounds]
        yield measured(f"{mode}: services - {ENGINE}", pairs, difference_of_medians, informative("ms"))
    for mode in MODES:
        for side in (SERVICES, ENGINE, DIFFUSERS):
            of_side = [one.milliseconds[mode, side] for one in rounds]
            yield measured(f"{mode}: {side}, median", of_side, statistics.median, informative("ms"))
        levels = [one.pixel_differences[mode] for one in rounds]
        yield Figure(f"{mode}: largest pixel difference", max(levels), at_most(1, "of 255"), len(levels))


def difference_of_medians(samples: Sequence[tuple[float, float]]) -> float:
    return statistics.median(ours for ours, _ in samples) - statistics.median(theirs for _, theirs in samples)


if __name__ == "__main__":
    raise SystemExit(main())
