"""Measure HTTP's cost over gRPC, and the frontdoor's requests per second, with a worker that answers immediately.

Latency: the same request over gRPC, over HTTP, and to a server of FastAPI and pydantic with a constant answer of the
same size (as vLLM's handlers, without an engine), in sequence and in drawn orders. Rate: each side with a constant
number of concurrent requests, in turns of a few seconds. Requests a second of one core use the processor time of the
side's processes, since the client and the worker need the machine's other core. Every image has a different seed; the
cache is off.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.http_client import HttpClient
from benchmarks.suites.instant import InstantSuite, instant_suite
from lab.runs.intervals import percentile
from lab.runs.measure import (
    Figure,
    Options,
    Target,
    at_least,
    at_most,
    drawn_orders,
    informative,
    measured,
    parse_options,
    publish,
)
from pentimento.clients.image import ImageClient
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel

IMAGE_BYTES = 16 * 1024
ADDED_P50, ADDED_P99 = at_most(3.0, "ms"), at_most(10.0, "ms")
RATE = at_least(800.0, "1/s")
FRONT_DOOR = ("edge", "frontdoor")
WARM_UP = 50
_NUMBERS = itertools.count(1)


@dataclass
class SideTimes:
    """Store milliseconds of each request, and each turn's requests per second of the clock and of the processor."""

    latency_ms: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    per_core_s: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedSide:
    """Describe a side: `ask` makes one request; `processes` are its servers, alone and together, by label."""

    name: str
    ask: Callable[[], Awaitable[None]]
    processes: dict[str, tuple[str, ...]]
    times: SideTimes = field(default_factory=SideTimes)


def main() -> int:
    options = parse_options("http_overhead", __doc__, add_options)
    with instant_suite(options.rest["picture_bytes"]) as suite:
        sides = asyncio.run(measure(options, suite))
    return publish(options, figures(sides), notes=options.rest)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=2000, help="requests of each side for the latencies")
    parser.add_argument("--turns", type=int, default=6, help="turns of each side for the rates")
    parser.add_argument("--turn-s", type=float, default=5.0, help="seconds of a turn")
    parser.add_argument("--at-once", type=int, default=32, help="concurrent requests in a turn")
    parser.add_argument(
        "--picture-bytes", type=int, default=IMAGE_BYTES, help="bytes of an image; 2,000,000 is a PNG of 1024 px"
    )


async def measure(options: Options, suite: InstantSuite) -> dict[str, TimedSide]:
    """Measure all sides in drawn orders."""
    async with open_channel(suite.frontdoor, RpcChannelSettings()) as channel:
        edge, peer = HttpClient(suite.edge), HttpClient(suite.peer)
        sides = [
            TimedSide("gRPC", over_grpc(ImageClient(channel)), {"frontdoor": ("frontdoor",)}),
            TimedSide("HTTP", over_http(edge), {"front door": FRONT_DOOR, "edge": ("edge",)}),
            TimedSide("FastAPI", over_http(peer), {"FastAPI": ("peer",)}),
        ]
        requests, turns = (100, 2) if options.quick else (options.rest["requests"], options.rest["turns"])
        await one_by_one(sides, WARM_UP)
        for side in sides:
            side.times.latency_ms.clear()
        await one_by_one(sides, requests)
        for order in drawn_orders(sides, turns):
            for side in order:
                await turn(side, suite, options)
        edge.close()
        peer.close()
    return {side.name: side for side in sides}


def over_grpc(client: ImageClient) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        request = ImageRequest("a red circle", num_inference_steps=1, seed=next(_NUMBERS), cache=CacheMode.OFF)
        *_, last = [event async for event in client.generate(request)]
        if not isinstance(last, Completed):
            raise RuntimeError(f"no image, but {last}")

    return ask


def over_http(client: HttpClient) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        document = {"prompt": "a red circle", "num_inference_steps": 1, "seed": next(_NUMBERS), "cache": "off"}
        answer = await client.ask(client.request(document))
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.body[:200]!r}")

    return ask


async def one_by_one(sides: Sequence[TimedSide], count: int) -> None:
    """Call each side once per round, in a drawn order."""
    for order in drawn_orders(sides, count):
        for side in order:
            began = time.perf_counter()
            await side.ask()
            side.times.latency_ms.append(1e3 * (time.perf_counter() - began))


async def turn(side: TimedSide, suite: InstantSuite, options: Options) -> None:
    """Call for some seconds with constant concurrency."""
    seconds = 1.0 if options.quick else options.rest["turn_s"]
    before = {name: suite.processor_s(*of) for name, of in side.processes.items()}
    began = time.perf_counter()
    until = began + seconds

    async def ask_on() -> int:
        count = 0
        while time.perf_counter() < until:
            await side.ask()
            count += 1
        return count

    done = sum(await asyncio.gather(*(ask_on() for _ in range(options.rest["at_once"]))))
    side.times.per_s.append(done / (time.perf_counter() - began))
    for name, of in side.processes.items():
        used_s = suite.processor_s(*of) - before[name]
        side.times.per_core_s.setdefault(name, []).append(done / used_s)


def figures(sides: dict[str, TimedSide]) -> list[Figure]:
    grpc, http, peer = sides["gRPC"].times, sides["HTTP"].times, sides["FastAPI"].times
    pairs = list(zip(http.latency_ms, grpc.latency_ms, strict=True))
    found = [
        measured("HTTP - gRPC, p50", pairs, added(0.5), ADDED_P50),
        measured("HTTP - gRPC, p99", pairs, added(0.99), ADDED_P99),
        rate("front door over HTTP, requests a second of one core", http.per_core_s["front door"], RATE),
        rate("edge alone, requests a second of one core", http.per_core_s["edge"]),
        rate("frontdoor over gRPC, requests a second of one core", grpc.per_core_s["frontdoor"]),
        rate("FastAPI's constant, requests a second of one core", peer.per_core_s["FastAPI"]),
        rate("front door over HTTP, requests a second", http.per_s),
        rate("FastAPI's constant, requests a second", peer.per_s),
    ]
    for side in sides.values():
        latencies = side.times.latency_ms
        found.append(measured(f"{side.name}, p50", latencies, statistics.median, informative("ms")))
        found.append(measured(f"{side.name}, p99", latencies, percentile(0.99), informative("ms")))
    return found


def rate(name: str, values: Sequence[float], target: Target | None = None) -> Figure:
    return measured(name, values, statistics.median, target or informative("1/s"))


def added(share: float) -> Callable[[Sequence[tuple[float, float]]], float]:
    """Return the difference of both sides' quantiles."""
    of = percentile(share)
    return lambda pairs: of([ours for ours, _ in pairs]) - of([theirs for _, theirs in pairs])


if __name__ == "__main__":
    raise SystemExit(main())
