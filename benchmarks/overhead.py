"""What the services cost: a picture through all of them against the same picture by diffusers in one process.

Pairs of the same prompt, seed and steps, the order within a pair alternating, both sides timed by this client's clock
from the call to the picture in its hands. Prompts never repeat, so no memo helps; lookups in the cache really happen
and must miss (the gateway's threshold is a cosine of 1), and finished pictures are written to it. Each side has one
torch thread in a process of its own. Ours includes the PNG that the client gets; theirs hands over raw pixels. The
pixels of a pair must agree within one level of 255, or there is no figure.
"""

import argparse
import asyncio
import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from benchmarks.diffusers_process import DiffusersProcess, PipelineOrder, diffusers_process
from benchmarks.report import Figure, Options, at_most, informative, measured, parse_options, publish
from pentimento.clients.gateway import GatewayClient
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import Client, ImageRequest, Picture
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import find_model

# Every lookup searches, and only the very same prompt could hit. The five shares are the default's: as many latents are
# captured and written as in normal use.
NEVER_A_HIT = {"PENTIMENTO_VECTORDB_GATEWAY_LATENT_THRESHOLDS": "1:0.1,1:0.2,1:0.3,1:0.4,1:0.5"}
WARM_UP_PAIRS = 3
STEPS = 50
GUIDANCE_SCALE = 3.0
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "diamond", "bar")


@dataclass(frozen=True)
class TimedPair:
    """Milliseconds of each side, and the largest difference of a pixel's channel in levels of 255."""

    ours_ms: float
    theirs_ms: float
    pixel_difference: int


def main() -> int:
    options = parse_options("overhead", __doc__, add_options)
    count = 8 if options.quick else options.rest["pairs"]
    model = find_model(options.rest["model"])
    flags = ["--model", str(model.path), "--device", "cpu", "--threads", "1"]
    with diffusers_process(model.path) as theirs, local_suite(flags, environment=NEVER_A_HIT) as suite:
        with Client(suite.endpoint.public) as ours:
            for number in range(WARM_UP_PAIRS):
                run_pair(ours, theirs, order_of(number))
            pairs = [run_pair(ours, theirs, order_of(WARM_UP_PAIRS + number)) for number in range(count)]
        cache = asyncio.run(cache_statistics(suite))
    check_lookups(cache, len(pairs) + WARM_UP_PAIRS)
    return publish(options, figures_of(pairs), notes=notes_of(options, cache))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=60, help="pairs that are measured")
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")


def order_of(number: int) -> PipelineOrder:
    """Another prompt for every number, so that nothing is remembered from before."""
    colour, shape = COLOURS[number % len(COLOURS)], SHAPES[number // len(COLOURS) % len(SHAPES)]
    return PipelineOrder(
        f"a {colour} {shape}, number {number}", seed=1000 + number, steps=STEPS, guidance_scale=GUIDANCE_SCALE
    )


def run_pair(ours: Client, theirs: DiffusersProcess, order: PipelineOrder) -> TimedPair:
    def paint_ours() -> Picture:
        request = ImageRequest(
            order.prompt, num_inference_steps=order.steps, guidance_scale=order.guidance_scale, seed=order.seed
        )
        return ours.generate(request)

    if order.seed % 2:
        picture, ours_ms = timed(paint_ours)
        (width, height, pixels), theirs_ms = timed(lambda: theirs.paint(order))
    else:
        (width, height, pixels), theirs_ms = timed(lambda: theirs.paint(order))
        picture, ours_ms = timed(paint_ours)
    return TimedPair(ours_ms, theirs_ms, pixel_difference(picture.data, width, height, pixels))


def timed(paint: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = paint()
    return result, (time.perf_counter() - started) * 1000


def pixel_difference(png: bytes, width: int, height: int, pixels: bytes) -> int:
    with Image.open(io.BytesIO(png)) as image:
        if image.size != (width, height):
            raise RuntimeError(f"ours is {image.size}, theirs {(width, height)}: not the same picture")
        return max(abs(a - b) for a, b in zip(image.convert("RGB").tobytes(), pixels, strict=True))


async def cache_statistics(suite: LocalSuite) -> dict[str, int]:
    async with open_channel(suite.endpoint.gateway, RpcChannelSettings()) as channel:
        found = await GatewayClient(channel).statistics()
    return {"lookups": found.lookup_count, "hits": found.hit_count, "entries": found.entry_count}


def check_lookups(cache: dict[str, int], pictures: int) -> None:
    if cache["lookups"] < pictures or cache["hits"]:
        raise RuntimeError(f"every picture must look up and miss, got {cache} for {pictures} pictures")


def figures_of(pairs: Sequence[TimedPair]) -> list[Figure]:
    samples = [(pair.ours_ms, pair.theirs_ms) for pair in pairs]
    worst = max(pair.pixel_difference for pair in pairs)
    return [
        measured("difference of the medians", samples, difference_of_medians, at_most(15, "ms")),
        measured("ratio of the medians", samples, ratio_of_medians, at_most(1.05, "x")),
        measured("median of the paired differences", samples, median_difference, informative("ms")),
        measured("ours, median", [ours for ours, _ in samples], statistics.median, informative("ms")),
        measured("diffusers, median", [theirs for _, theirs in samples], statistics.median, informative("ms")),
        Figure(
            "largest pixel difference", worst, at_most(1, "of 255"), [pair.pixel_difference for pair in pairs], None
        ),
    ]


def difference_of_medians(samples: Sequence[tuple[float, float]]) -> float:
    return statistics.median(ours for ours, _ in samples) - statistics.median(theirs for _, theirs in samples)


def ratio_of_medians(samples: Sequence[tuple[float, float]]) -> float:
    return statistics.median(ours for ours, _ in samples) / statistics.median(theirs for _, theirs in samples)


def median_difference(samples: Sequence[tuple[float, float]]) -> float:
    return statistics.median(ours - theirs for ours, theirs in samples)


def notes_of(options: Options, cache: dict[str, int]) -> dict[str, Any]:
    return {
        "model": options.rest["model"],
        "steps": STEPS,
        "guidance_scale": GUIDANCE_SCALE,
        "seeds": "1000 + the pair's number",
        "torch_threads": 1,
        "warm_up_pairs": WARM_UP_PAIRS,
        "cache": cache,
        "configuration": NEVER_A_HIT,
    }


if __name__ == "__main__":
    raise SystemExit(main())
