"""Let the controller's scaler set the replicas of workers, ControlNet services and embedders, 1 -> 4 -> 1, under load.

Real models: the zoo's heavy one, with both of its ControlNets in each request; every second request uses the cache, and
so the embedders. A client outside of the suite asks the scaler over mutual TLS, as KEDA does, and `pentimento scale`
applies its answers, as the cluster would. One client that pauses is joined by many and by callers of the embedder; at
first without the autoscaler, so that the latency during its move has a baseline at the same load. An added replica's
count of work (embeddings, ControlNet steps, images) is read until it is above zero: it must serve within seconds of
being ready. A removed replica must drain and end. Requests are checked as in kill_one: nothing lost, nothing committed
twice, and images without the cache equal byte by byte to those of the suite before.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from PIL import Image, ImageDraw

from benchmarks.suites.faulted_load import DEADLINE_MS, FaultedLoad, read_journal, request_figures
from benchmarks.suites.instant import free_port
from benchmarks.suites.journal_events import record_events
from benchmarks.suites.keda_calls import KedaClient, make_stubs
from lab.fixtures.certificates import Authority
from lab.fixtures.worker_under_test import png_of
from lab.runs.intervals import percentile, ratio_interval
from lab.runs.measure import Figure, Interval, Notes, at_most, informative, parse_options, publish
from pentimento.clients.controlnet import ControlNetClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.embedders import Embedders
from pentimento.clients.worker import WorkerClient
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageRequest
from pentimento.policies.scaling import RECENT_S
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.rpc.channel import channel_opener
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.scaling import GroupStatus, ReplicaFiles

MOST = 4
CONTROLNETS = ("tiny-controlnet-edges", "tiny-controlnet-layout")
SIDE_PX, STEPS = 64, 20
# Batches of one: images must be equal to the bit, independent of other requests.
ENVIRONMENT = {
    "PENTIMENTO_UNET_WORKER_MAX_BATCH": "1",
    "PENTIMENTO_CONTROLNET_SVC_MAX_BATCH": "1",
    "PENTIMENTO_CONTROLLER_SLO_S": "6",
    "PENTIMENTO_CONTROLLER_PLAN_INTERVAL_S": "1",
}
# Triggers' metadata by service. A lone client's image has two ControlNet streams; a caller of the embedder, one call.
TRIGGERS = {
    "unet_worker": {"service": "unet_worker", "startSeconds": "10"},
    "controlnet_svc": {"service": "controlnet_svc", "callsPerReplica": "2"},
    "embedder": {"service": "embedder", "callsPerReplica": "0.5"},
}
DWELL_S = 10.0
# KEDA asks every 30 s, the cluster's autoscaler every 15 s; the load's phases here last for seconds.
ASK_S = 1.0
PAUSE_S = 8.0
EMBED_CALLERS, EMBED_TEXTS = 2, 64
LOOK_S = 0.05
SERVES_WITHIN_S = 5.0
SLOWER = 1.5
# Shorter than the rest at the top: no replica is removed while its work is read.
WORK_LIMIT_S = 30.0
# The whole move on two cores, and the arrivals that count for workers.
MOVE_LIMIT_S = 240.0 + RECENT_S
p99 = percentile(0.99)


@dataclass(frozen=True)
class AddedReplica:
    """Store one added replica: `up_s` from its start to SERVING; `work_s` from then to its first finished work."""

    service: str
    name: str
    up_s: float
    work_s: float


async def embedded(channel: grpc.aio.Channel) -> int:
    """Return an embedder's number of embedded texts and images."""
    info = await EmbedderClient(channel).info(5.0)
    return info.memo_hit_count + info.memo_miss_count


async def controlled(channel: grpc.aio.Channel) -> int:
    """Return a ControlNet service's number of computed steps."""
    return (await ControlNetClient(channel).status(5.0)).step_count


async def finished_images(channel: grpc.aio.Channel) -> int:
    """Return a worker's number of finished images."""
    return (await WorkerClient(channel).status(5.0)).completed_count


WORK: dict[str, Callable[[grpc.aio.Channel], Awaitable[int]]] = {
    "embedder": embedded,
    "controlnet_svc": controlled,
    "unet_worker": finished_images,
}


def request_of(number: int, cached: bool) -> ImageRequest:
    """Return the same request for the same arguments."""
    image = Image.new("RGB", (SIDE_PX, SIDE_PX))
    ImageDraw.Draw(image).ellipse((8 + number, 8, 40 + number, 40), outline="white")
    return ImageRequest(
        f"a {('red', 'green', 'blue', 'yellow')[number % 4]} {('circle', 'square')[number // 4 % 2]}",
        width_px=SIDE_PX,
        height_px=SIDE_PX,
        num_inference_steps=STEPS,
        seed=100 + number,
        cache=CacheMode.READ_WRITE if cached else CacheMode.OFF,
        deadline_ms=DEADLINE_MS,
        controlnets=tuple(AskedControlNet(name, png_of(image)) for name in CONTROLNETS),
    )


class Autoscaler:
    """Ask the scaler for each service, and apply its answers within 1 to `MOST`."""

    def __init__(self, suite: LocalSuite, scaler: KedaClient) -> None:
        self._suite = suite
        self._scaler = scaler
        self._wanted = dict.fromkeys(TRIGGERS, 1)
        # Each change of a service's replicas.
        self.changes: list[tuple[str, int]] = []

    async def run_forever(self) -> None:
        while True:
            for service, metadata in TRIGGERS.items():
                trigger = {**metadata, "dwellSeconds": f"{DWELL_S:g}"}
                answer = await asyncio.to_thread(self._scaler.call, "GetMetrics", trigger, "wanted_replicas")
                count = min(max(int(answer["metricValues"][0]["metricValue"]), 1), MOST)
                if count != self._wanted[service]:
                    self._wanted[service] = count
                    self.changes.append((service, count))
                    print(f"{service}: {count}", flush=True)
                    await self._apply(service, count)
            await asyncio.sleep(ASK_S)

    async def _apply(self, service: str, count: int) -> None:
        command = [sys.executable, "-m", "pentimento.cli", "scale", service, str(count), "--timeout-s", "0"]
        process = await asyncio.create_subprocess_exec(
            *command, "--state-dir", str(self._suite.state.path), stdout=subprocess.DEVNULL, env=os.environ
        )
        if await process.wait():
            raise RuntimeError(f"{service} was not scaled to {count}")


class ScalingTrial:
    def __init__(self, suite: LocalSuite, scaler: KedaClient) -> None:
        self._suite = suite
        self._files = ReplicaFiles(suite.state.path)
        self.autoscaler = Autoscaler(suite, scaler)
        self.added: list[AddedReplica] = []
        # First and last monotonic second of each phase.
        self.phases: dict[str, tuple[float, float]] = {}

    async def run(self, clients: int, rest_s: float) -> FaultedLoad:
        """Run the load: `rest_s` of each steady phase, and each move until the scaler's numbers are reached."""
        async with AsyncClient(self._suite.endpoint.frontdoor) as client:
            load = FaultedLoad(client, cached_every=2, make=request_of)
            await load.generate_reference()
            ended, calm = asyncio.Event(), asyncio.Event()
            tasks = load.start(1, ended, PAUSE_S)
            async with self._phase("light"):
                await asyncio.sleep(rest_s)
            busy = load.start(clients, calm) + [asyncio.create_task(self._embed(calm)) for _ in range(EMBED_CALLERS)]
            async with self._phase("busy"):
                await asyncio.sleep(rest_s)
            background = [asyncio.create_task(self.autoscaler.run_forever()), asyncio.create_task(self._watch_all())]
            async with self._phase("up"):
                await self._reached(MOST, background)
            await asyncio.sleep(rest_s)
            calm.set()
            await asyncio.gather(*busy)
            async with self._phase("down"):
                await self._reached(1, background)
            ended.set()
            await asyncio.gather(*tasks)
            for task in background:
                task.cancel()
            await load.ask_again()
        return load

    @asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[None]:
        began_s = time.monotonic()
        yield
        self.phases[name] = (began_s, time.monotonic())
        print(f"{name}: {time.monotonic() - began_s:.1f} s", flush=True)

    async def _reached(self, count: int, background: Sequence[asyncio.Task[None]]) -> None:
        """Wait until that number of each service serves. Raises what a background task raised, and RuntimeError after
        MOVE_LIMIT_S."""
        end_s = time.monotonic() + MOVE_LIMIT_S
        while not all(status.settled and status.wanted == count for status in self._statuses().values()):
            for task in background:
                if task.done():
                    await task
            if time.monotonic() > end_s:
                raise RuntimeError(f"not every service has {count} replicas: {self._statuses()}")
            await asyncio.sleep(LOOK_S)

    def _statuses(self) -> dict[str, GroupStatus]:
        return {name: status for name, status in self._files.there().items() if name in TRIGGERS}

    async def _embed(self, stop: asyncio.Event) -> None:
        """Embed new texts at the serving embedders, distributed as by a frontdoor, until `stop` is set."""
        opening, draws = channel_opener(RpcChannelSettings()), random.Random()
        embedders = Embedders(lambda address: EmbedderClient(opening(address)), [self._address("embedder")])
        while not stop.is_set():
            states = self._statuses()["embedder"].states
            embedders.follow([self._address(name) for name, state in states.items() if state == "serving"])
            texts = [f"a red circle {draws.random()}" for _ in range(EMBED_TEXTS)]
            await embedders.embed_text(texts, MOVE_LIMIT_S)

    def _address(self, name: str) -> str:
        return f"unix:{self._suite.state.sockets / name}.sock"

    async def _watch_all(self) -> None:
        """Watch each replica that is added."""
        known = {name for status in self._statuses().values() for name in status.states}
        async with asyncio.TaskGroup() as watched:
            while True:
                for service, status in self._statuses().items():
                    for name in set(status.states) - known:
                        known.add(name)
                        watched.create_task(self._watch(service, name))
                await asyncio.sleep(LOOK_S)

    async def _watch(self, service: str, name: str) -> None:
        began_s = time.monotonic()
        while self._statuses()[service].states.get(name) != "serving":  # noqa: ASYNC110 - a file
            await asyncio.sleep(LOOK_S)
        up_s = time.monotonic()
        async with open_channel(self._address(name), RpcChannelSettings()) as channel:
            while not await WORK[service](channel) and time.monotonic() - up_s < WORK_LIMIT_S:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        self.added.append(AddedReplica(service, name, up_s - began_s, time.monotonic() - up_s))
        print(self.added[-1], flush=True)


def figures_of(trial: ScalingTrial, load: FaultedLoad, killed_count: int) -> list[Figure]:
    figures = []
    for service in TRIGGERS:
        added = [replica for replica in trial.added if replica.service == service]
        work_s, up_s = max(one.work_s for one in added), max(one.up_s for one in added)
        name = f"{service}: the last of the added replicas has done work after being ready"
        figures.append(Figure(name, work_s, at_most(SERVES_WITHIN_S, "s"), len(added)))
        figures.append(Figure(f"{service}: start to ready", up_s, informative("s"), len(added)))
        peak = max(count for name, count in trial.autoscaler.changes if name == service)
        figures.append(Figure(f"{service}: most replicas", peak, informative("replicas")))
    figures += [slowdown(trial, load, "up", "busy"), slowdown(trial, load, "down", "light")]
    for move in ("up", "down"):
        began_s, ended_s = trial.phases[move]
        figures.append(Figure(f"all services {move}", ended_s - began_s, informative("s")))
    figures.append(Figure("removed replicas that had to be killed", killed_count, at_most(0, "replicas")))
    return [*figures, *request_figures(load)]


def slowdown(trial: ScalingTrial, load: FaultedLoad, move: str, before: str) -> Figure:
    """Return p99 of the requests that began during a move ÷ p99 before it, at the same load."""

    def latencies(phase: str) -> list[float]:
        first, last = trial.phases[phase]
        return [one.ended_s - one.began_s for one in load.samples if first <= one.began_s < last]

    during, quiet = latencies(move), latencies(before)
    interval = Interval(*ratio_interval(during, quiet, p99))
    name = f"p99 while services go {move} / before, {before} load"
    return Figure(name, p99(during) / p99(quiet), at_most(SLOWER, "x"), len(during), interval)


def main() -> int:
    options = parse_options("scaling", __doc__, add_options)
    flags = ["--controlnets", "tiny", "--device", "cpu", "--threads", "1"]
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        authority = Authority(Path(folder), "authority")
        environment = ENVIRONMENT | {
            "PENTIMENTO_COMMON_TLS_DIR": str(authority.issue("controller").directory),
            "PENTIMENTO_CONTROLLER_SCALER_LISTEN": f"127.0.0.1:{port}",
            "PENTIMENTO_CONTROLLER_MUTUAL_TLS": "true",
        }
        with local_suite(flags, environment=environment) as suite:
            stubs = make_stubs(Path(folder) / "stubs")
            scaler = KedaClient(stubs, f"127.0.0.1:{port}", authority.certificate, authority.issue("keda"))
            journal = f"sqlite:///{suite.state.path}/frontdoor.sqlite"
            record_events(journal)
            trial = ScalingTrial(suite, scaler)
            load = asyncio.run(trial.run(options.rest["clients"], 5.0 if options.quick else 40.0))
            scaler.end()
            read_journal(journal, load)
            killed_count = suite.log("supervisor").count("did not stop")
    changes = ", ".join(f"{service} {count}" for service, count in trial.autoscaler.changes)
    notes: Notes = {"clients": options.rest["clients"], "changes": changes}
    return publish(options, figures_of(trial, load, killed_count), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=12, help="clients of the busy phase, one request in flight each")


if __name__ == "__main__":
    raise SystemExit(main())
