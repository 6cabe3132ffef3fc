"""Measure cells: the requests of 4 frontdoors against 1, the fairness of a worker to two, and moves under load.

Throughput: a frontdoor uses one core. Two cores cannot run four frontdoors, so processor time is measured, of one
frontdoor under full load at a time: turns of a single frontdoor and of each of four cells, with its own tenants of the
same 1,000, over one worker that answers immediately; the other processes run, idle. The rate of a form is what its
frontdoors carry with a core each: the busiest one limits it, by its share of the tenants and its processor time of a
request. Clients, worker, disk, and what four busy processes of one machine cost each other are not counted.

Fairness: two cells over two emulated devices of 4 credits; one cell has 48 requests at a time, the other 12, so that
both always have requests waiting. Jain's index is of their completed images. The greedy cell then runs alone.

Moves: 60 tenants send requests over gRPC and HTTP with idempotency keys, and repeat each call until it is answered,
while a cell is added to two, and removed again: every process restarts with the new lists. The journals of all cells
are read at the end. Then the active frontdoor of a cell is killed, and its standby takes over.

`--simulated 100` runs that number of cells over 10,000 devices in virtual time (`benchmarks.suites.simulated_cells`);
the result is `cells_simulated.json`.
"""

import argparse
import asyncio
import itertools
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.suites.cell_processes import CellProcesses, cell_processes, tenants_of, write_tokens
from benchmarks.suites.simulated_cells import CORE_S, SEED, simulated_figures
from lab.runs.figures import jain_index
from lab.runs.measure import (
    Figure,
    Options,
    at_least,
    at_most,
    counted,
    drawn_orders,
    informative,
    measured,
    parse_options,
    publish,
    renamed,
)
from pentimento.clients.image import ImageClient
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.domain.reasons import Reason
from pentimento.policies.cells import rendezvous
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.cells import cell_names
from pentimento.supervisor.local import local_suite

FOUR = ("a", "b", "c", "d")
TENANTS, AT_ONCE = 1000, 32
_NUMBERS = itertools.count(1)
FLEET = """
seed = 1
batching = "steps"
default_model = "m"

[[models]]
name = "m"
steps = 20
guidance_scale = 1.0
latency_s = { 1 = 0.30, 2 = 0.36, 4 = 0.50 }
variation = 0.0
load_s = 0.1
load_variation = 0.0
quality = 0.5
quality_spread = 0.1

[[devices]]
name = "device"
count = 2
speed = 1.0
models = ["m"]
"""
GREEDY, MODEST = 48, 12
OLD, NEW = "a+b", "a+b+c"
MOVED_TENANTS = 60
REPEAT_S = 0.1
# The standby has then seen beats of the active frontdoor.
SETTLED_S = 5.0


def request_of(steps: int = 1) -> ImageRequest:
    return ImageRequest("a red circle", num_inference_steps=steps, seed=next(_NUMBERS), cache=CacheMode.OFF)


@dataclass
class CellTurns:
    """Store the turns of one frontdoor under full load: requests, and processor seconds. `share`: of all tenants."""

    name: str
    clients: Sequence[ImageClient]
    share: float
    turns: list[tuple[int, float]] = field(default_factory=list)

    def cost_s(self, number: int) -> float:
        """Return the processor seconds of a request in a turn."""
        done, used_s = self.turns[number]
        return used_s / done


async def throughput(options: Options) -> list[Figure]:
    """Return the figures of one frontdoor and of four cells."""
    turns, seconds = (2, 1.0) if options.quick else (options.rest["turns"], options.rest["turn_s"])
    with cell_processes(TENANTS, FOUR) as processes:
        processes.start("single", alone=True)
        for name in FOUR:
            processes.start(name, "+".join(FOUR))
        homes = processes.homes(FOUR)
        async with AsyncExitStack() as stack:

            async def of(name: str, tenants: Sequence[str]) -> CellTurns:
                opened = [open_channel(processes.address(name), RpcChannelSettings(), tenant) for tenant in tenants]
                clients = [ImageClient(await stack.enter_async_context(one)) for one in opened]
                return CellTurns(name, clients, len(tenants) / TENANTS)

            single = await of("single", processes.tenants)
            four = [await of(name, [one for one, home in homes.items() if home == name]) for name in FOUR]
            for order in drawn_orders([single, *four], turns):
                for cell in order:
                    await turn(cell, processes, seconds)
    rounds = [(single.cost_s(number), [(one.share, one.cost_s(number)) for one in four]) for number in range(turns)]
    return [
        measured("requests/s of 4 cells ÷ 1, a core for each frontdoor", rounds, ratio, at_least(3.5, "x")),
        measured("1 frontdoor, requests a second of its core", rounds, lambda of: 1 / single_s(of), informative("1/s")),
        measured("4 cells, requests a second of 4 cores", rounds, lambda of: 1 / busiest_s(of), informative("1/s")),
        measured("1 frontdoor, processor ms of a request", rounds, lambda of: 1e3 * single_s(of), informative("ms")),
        measured("4 cells, processor ms of a request", rounds, lambda of: 1e3 * of_four_s(of), informative("ms")),
        Figure("share of tenants of the busiest of 4 cells", max(one.share for one in four), informative()),
    ]


async def turn(cell: CellTurns, processes: CellProcesses, seconds: float) -> None:
    """Send requests of the cell's tenants for some seconds, `AT_ONCE` at a time."""
    clients, before = itertools.cycle(cell.clients), processes.processor_s(cell.name)
    until = time.perf_counter() + seconds

    async def send() -> int:
        count = 0
        while time.perf_counter() < until:
            *_, last = [event async for event in next(clients).generate(request_of())]
            assert isinstance(last, Completed)
            count += 1
        return count

    done = sum(await asyncio.gather(*(send() for _ in range(AT_ONCE))))
    cell.turns.append((done, processes.processor_s(cell.name) - before))


# A round: the processor seconds of a request of one frontdoor; and of each cell, with its share of the tenants.
Round = tuple[float, list[tuple[float, float]]]


def single_s(rounds: Sequence[Round]) -> float:
    return statistics.fmean(single for single, _ in rounds)


def of_four_s(rounds: Sequence[Round]) -> float:
    return statistics.fmean(sum(share * cost for share, cost in four) for _, four in rounds)


def busiest_s(rounds: Sequence[Round]) -> float:
    """Return the processor seconds that a request of the suite takes from the busiest cell."""
    of_cells = zip(*([share * cost for share, cost in four] for _, four in rounds), strict=True)
    return max(map(statistics.fmean, of_cells))


def ratio(rounds: Sequence[Round]) -> float:
    return single_s(rounds) / busiest_s(rounds)


async def fairness(options: Options) -> list[Figure]:
    """Return the figures of two cells over one fleet."""
    warm_s, window_s, windows = (1.0, 2.0, 2) if options.quick else (5.0, 5.0, options.rest["windows"])
    tenants = tenants_of(8)
    names = cell_names(2)
    greedy, modest = (next(one for one in tenants if rendezvous(one, names) == name) for name in names)
    with TemporaryDirectory(prefix="pmt-") as folder:
        fleet, tokens = Path(folder, "fleet.toml"), write_tokens(Path(folder), tenants)
        fleet.write_text(FLEET)
        flags = ["--emulate", str(fleet), "--cells", "2", "--token-file", str(tokens)]
        with local_suite(flags) as suite:
            done = {greedy: 0, modest: 0}
            async with sending(suite.endpoint.public, greedy, GREEDY, done):
                await asyncio.sleep(warm_s)
                alone = [await completed_in(window_s, done) for _ in range(windows)]
                async with sending(suite.endpoint.public, modest, MODEST, done):
                    await asyncio.sleep(warm_s)
                    both = [await completed_in(window_s, done) for _ in range(windows)]
    served = [(one[greedy], one[modest]) for one in both]
    rates = [sum(one) / first[greedy] for one, first in zip(served, alone, strict=True)]
    return [
        measured("Jain's index of two cells, one greedy", served, total_index, at_least(0.95)),
        measured("images of both ÷ of the greedy one alone", rates, statistics.median, informative("x")),
    ]


def total_index(served: Sequence[tuple[int, int]]) -> float:
    return jain_index([sum(one) for one in zip(*served, strict=True)])


async def completed_in(seconds: float, done: Mapping[str, int]) -> dict[str, int]:
    """Return what each tenant completes in the next seconds."""
    before = dict(done)
    await asyncio.sleep(seconds)
    return {tenant: count - before[tenant] for tenant, count in done.items()}


@asynccontextmanager
async def sending(address: str, tenant: str, at_once: int, done: dict[str, int]) -> AsyncIterator[None]:
    """Keep a number of a tenant's requests running, and count the completed ones."""
    async with AsyncClient(address, token=tenant) as client:

        async def send() -> None:
            while True:
                await client.generate(request_of(20))
                done[tenant] += 1

        sends = [asyncio.create_task(send()) for _ in range(at_once)]
        try:
            yield
        finally:
            for one in sends:
                one.cancel()
            for ended in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(ended, PentimentoError):
                    raise ended


@dataclass
class MovedLoad:
    """Send keyed requests over gRPC and HTTP, and repeat each until it is answered."""

    sent: list[tuple[str, str]] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    stopping: bool = False

    async def send_forever(self, tenant: str, call: Callable[[str], Awaitable[bool]]) -> None:
        while not self.stopping:
            key = f"key-{next(_NUMBERS)}"
            self.sent.append((tenant, key))
            began = time.perf_counter()
            while not await call(key):  # noqa: ASYNC110 - another process answers
                await asyncio.sleep(REPEAT_S)
            self.answered.append(time.perf_counter() - began)

    def over_grpc(self, client: AsyncClient) -> Callable[[str], Awaitable[bool]]:
        async def call(key: str) -> bool:
            try:
                await client.generate(ImageRequest("a red circle", num_inference_steps=1, seed=1), idempotency_key=key)
            except Unavailable:
                return False
            return True

        return call

    def over_http(self, client: httpx.AsyncClient, tenant: str) -> Callable[[str], Awaitable[bool]]:
        async def call(key: str) -> bool:
            headers = {"Authorization": f"Bearer {tenant}", "Idempotency-Key": key}
            body = {"prompt": "a red circle", "num_inference_steps": 1, "seed": 1}
            try:
                answer = await client.post("/v1/images/generations", json=body, headers=headers)
            except httpx.HTTPError:
                return False
            if answer.status_code not in (200, 503):
                raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")
            return answer.status_code == 200

        return call


async def moves(options: Options) -> list[Figure]:
    """Return the figures of a cell that is added, removed, and of one that is killed."""
    rest_s = 1.0 if options.quick else 5.0
    with cell_processes(MOVED_TENANTS, ("a", "b", "c")) as processes:
        for name in ("a", "b"):
            processes.start(name, OLD)
        processes.start_edge(OLD)
        load = MovedLoad()
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{processes.edge}", timeout=60))
            loads = []
            for number, tenant in enumerate(processes.tenants):
                client = AsyncClient(processes.address("a"), token=tenant)
                grpc = load.over_grpc(await stack.enter_async_context(client))
                call = grpc if number % 2 else load.over_http(http, tenant)
                loads.append(asyncio.create_task(load.send_forever(tenant, call)))
            await asyncio.sleep(rest_s)
            await asyncio.to_thread(processes.start, "c", NEW, OLD)
            await roll(processes, ("a", "b"), rest_s, NEW, OLD)
            await roll(processes, ("c", "a", "b"), rest_s, OLD, NEW)
            load.stopping = True
            await asyncio.gather(*loads)
        accepted = processes.accepted()
        seconds = await failover(processes)
    lost = sum(not accepted[one] for one in load.sent)
    duplicated = sum(accepted[one] > 1 for one in load.sent)
    old, new = (processes.homes(lists.split("+")) for lists in (OLD, NEW))
    return [
        counted("requests lost while tenants moved", lost, len(load.sent), at_most(0, "requests")),
        counted("requests accepted twice", duplicated, len(load.sent), at_most(0, "requests")),
        Figure("tenants that moved, there and back", sum(old[one] != new[one] for one in old), informative("tenants")),
        Figure("longest wait of a request while processes restart", max(load.answered), informative("s")),
        Figure("seconds until the standby of a killed cell answers", seconds, at_most(5.0, "s")),
    ]


async def roll(processes: CellProcesses, names: Sequence[str], rest_s: float, *lists: str) -> None:
    """Restart the cells one after the other with other lists, then the edge."""
    for name in names:
        await asyncio.to_thread(processes.stop, name)
        await asyncio.to_thread(processes.start, name, *lists)
        await asyncio.sleep(rest_s)
    await asyncio.to_thread(processes.stop, "edge")
    await asyncio.to_thread(processes.start_edge, *lists)
    await asyncio.sleep(rest_s)


async def failover(processes: CellProcesses) -> float:
    """Kill the active frontdoor of a cell, and return the seconds until its standby generates an image."""
    processes.start("b", OLD, NEW, standby=True)
    tenant = next(tenant for tenant, name in processes.homes(("a", "b")).items() if name == "b")
    async with AsyncClient(processes.address("b-standby"), token=tenant, retries=RetryPolicy(tries=1)) as client:
        while await refusal(client) != Reason.STANDBY:  # noqa: ASYNC110 - another process answers
            await asyncio.sleep(REPEAT_S)
        await asyncio.sleep(SETTLED_S)
        began = time.perf_counter()
        await asyncio.to_thread(processes.stop, "b", signal.SIGKILL)
        while await refusal(client):  # noqa: ASYNC110 - another process answers
            await asyncio.sleep(REPEAT_S)
        return time.perf_counter() - began


async def refusal(client: AsyncClient) -> str:
    """Return the reason with which a request is rejected; "" for an image."""
    try:
        await client.generate(request_of())
    except Unavailable as error:
        return error.reason
    return ""


async def measure(options: Options) -> list[Figure]:
    return [*await throughput(options), *await fairness(options), *await moves(options)]


def main() -> int:
    options = parse_options("cells", __doc__, add_options)
    if (cells := options.rest["simulated"]) is not None:
        devices = options.rest["devices"]
        notes = {"cells": cells, "devices": devices, "core_ms": 1e3 * CORE_S, "seed": SEED}
        return publish(renamed(options, "cells_simulated"), simulated_figures(cells, devices, options), notes=notes)
    notes = {"tenants": TENANTS, "at_once": AT_ONCE, **{name: options.rest[name] for name in ("turns", "turn_s")}}
    return publish(options, asyncio.run(measure(options)), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=8, help="turns of each frontdoor")
    parser.add_argument("--turn-s", type=float, default=3.0, help="seconds of a turn")
    parser.add_argument("--simulated", type=int, metavar="CELLS", help="simulate this number of cells in virtual time")
    parser.add_argument("--devices", type=int, default=10_000, help="devices of the simulated fleet")
    parser.add_argument("--windows", type=int, default=6, help="windows of 5 s of the two cells' images")


if __name__ == "__main__":
    raise SystemExit(main())
