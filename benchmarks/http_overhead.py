"""Measure HTTP's cost over gRPC, and the frontdoor's requests per second, with a worker that answers immediately.

Latency: the same request over gRPC, over HTTP, and to a server of FastAPI and pydantic with a constant answer of the
same size (as vLLM's handlers, without an engine), in sequence and in drawn orders. Rate: each side with a constant
number of concurrent requests, in turns of a few seconds. Requests a second of one core use the processor time of the
side's processes, since the client and the worker need the machine's other core. Every image has a different seed; the
cache is off.

`--unary` compares the stream without progress with a unary method over the same `ImageApi.generate`, which only this
benchmark's frontdoor has; the result is `http_overhead_unary.json`.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc.aio

from benchmarks.peers.http_client import HttpClient
from benchmarks.suites import unary_frontdoor
from benchmarks.suites.cell_processes import CellProcesses, cell_processes
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
    renamed,
)
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.clients.image import ImageClient, generate_to_proto
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel

IMAGE_BYTES = 16 * 1024
ADDED_P50, ADDED_P99 = at_most(3.0, "ms"), at_most(10.0, "ms")
RATE = at_least(800.0, "1/s")
FRONT_DOOR = ("edge", "frontdoor")
OF_CORE = (statistics.median, informative("ms"))
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
    processes: Mapping[str, tuple[str, ...]]
    times: SideTimes = field(default_factory=SideTimes)


def main() -> int:
    options = parse_options("http_overhead", __doc__, add_options)
    if options.rest["unary"]:
        with cell_processes(1, ("frontdoor",)) as processes:
            processes.start("frontdoor", alone=True, module=unary_frontdoor.__name__)
            unary = asyncio.run(measure_unary(options, processes))
        return publish(renamed(options, "http_overhead_unary"), unary_figures(*unary), notes=options.rest)
    with instant_suite(options.rest["picture_bytes"]) as suite:
        sides = asyncio.run(measure(options, suite))
    return publish(options, figures(sides), notes=options.rest)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unary", action="store_true", help="compare a unary answer with the stream")
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


async def measure_unary(options: Options, suite: CellProcesses) -> tuple[TimedSide, TimedSide]:
    """Measure the stream without progress and the unary method in drawn orders."""
    async with open_channel(suite.address("frontdoor"), RpcChannelSettings(), suite.tenants[0]) as channel:
        processes = {"frontdoor": ("frontdoor",)}
        stream = TimedSide("stream", over_grpc(ImageClient(channel), omit_progress=True), processes)
        unary = TimedSide("unary", over_unary(channel), processes)
        await one_by_one([stream, unary], WARM_UP)
        for order in drawn_orders([stream, unary], 2 if options.quick else options.rest["turns"]):
            for side in order:
                await turn(side, suite, options)
    return stream, unary


def new_request() -> ImageRequest:
    return ImageRequest("a red circle", num_inference_steps=1, seed=next(_NUMBERS), cache=CacheMode.OFF)


def over_unary(channel: grpc.aio.Channel) -> Callable[[], Awaitable[None]]:
    serialise, parse = pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString
    call = channel.unary_unary(unary_frontdoor.METHOD, request_serializer=serialise, response_deserializer=parse)

    async def ask() -> None:
        answer = await call(generate_to_proto(new_request(), "", 0))
        if len(answer.completed.image) < IMAGE_BYTES:
            raise RuntimeError(f"no image, but {answer}")

    return ask


def over_grpc(client: ImageClient, *, omit_progress: bool = False) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        *_, last = [event async for event in client.generate(new_request(), omit_progress=omit_progress)]
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


async def turn(side: TimedSide, suite: InstantSuite | CellProcesses, options: Options) -> None:
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


def unary_figures(stream: TimedSide, unary: TimedSide) -> list[Figure]:
    pairs = list(zip(stream.times.per_core_s["frontdoor"], unary.times.per_core_s["frontdoor"], strict=True))
    return [
        measured("share of the frontdoor's core that a unary answer saves", pairs, saved, informative()),
        rate("stream without progress, requests a second of one core", [one for one, _ in pairs]),
        rate("unary, requests a second of one core", [one for _, one in pairs]),
        measured("stream without progress, processor ms of a request", [1e3 / one for one, _ in pairs], *OF_CORE),
        measured("unary, processor ms of a request", [1e3 / one for _, one in pairs], *OF_CORE),
    ]


def saved(pairs: Sequence[tuple[float, float]]) -> float:
    return 1 - statistics.fmean(1 / unary for _, unary in pairs) / statistics.fmean(1 / stream for stream, _ in pairs)


def rate(name: str, values: Sequence[float], target: Target | None = None) -> Figure:
    return measured(name, values, statistics.median, target or informative("1/s"))


def added(share: float) -> Callable[[Sequence[tuple[float, float]]], float]:
    """Return the difference of both sides' quantiles."""
    of = percentile(share)
    return lambda pairs: of([ours for ours, _ in pairs]) - of([theirs for _, theirs in pairs])


if __name__ == "__main__":
    raise SystemExit(main())
