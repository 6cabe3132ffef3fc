"""Scale workers, ControlNet services and embedders 1 -> 3 -> 1 while clients request images.

Real models: the zoo's heavy one, with both of its ControlNets in each request; every second request uses the cache, and
so the embedders. The command is `pentimento scale`: workers first, to give work to three ControlNet services, which
follow, then embedders; workers are scaled down last. An added replica's count of work (embeddings, ControlNet steps,
images) is read until it is above zero: it must serve within seconds of being ready. A removed replica must drain and
end. Requests are checked as in kill_one: nothing lost, nothing committed twice, and images without the cache equal byte
by byte to those of the suite before.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
from PIL import Image, ImageDraw

from benchmarks.suites.faulted_load import DEADLINE_MS, FaultedLoad, count_commits, read_journal, request_figures
from lab.fixtures.worker_under_test import png_of
from lab.runs.measure import Figure, at_most, informative, parse_options, publish
from pentimento.clients.controlnet import ControlNetClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.worker import WorkerClient
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.scaling import ReplicaFiles

MOST = 3
CONTROLNETS = ("tiny-controlnet-edges", "tiny-controlnet-layout")
SIDE_PX, STEPS = 64, 20
# Batches of one: images must be equal to the bit, independent of other requests.
ENVIRONMENT = {
    "PENTIMENTO_UNET_WORKER_MAX_BATCH": "1",
    "PENTIMENTO_UNET_WORKER_WARM_UP_S": "0",
    "PENTIMENTO_CONTROLNET_SVC_MAX_BATCH": "1",
}
LOOK_S = 0.05
SERVES_WITHIN_S = 5.0
WORK_LIMIT_S = 60.0


@dataclass(frozen=True)
class AddedReplica:
    """Store one added replica: `up_s` from the command to SERVING; `work_s` from then to its first finished work."""

    name: str
    up_s: float
    work_s: float


@dataclass(frozen=True)
class ScaledService:
    """Store one service, 1 -> `MOST` -> 1. `down_s`: from the command until the removed replicas had ended."""

    service: str
    added: list[AddedReplica]
    down_s: float
    killed: list[str]


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


class ScalingTrial:
    def __init__(self, suite: LocalSuite) -> None:
        self._suite = suite
        self._files = ReplicaFiles(suite.state.path)
        self.scaled: list[ScaledService] = []

    async def run(self, clients: int, rest_s: float) -> FaultedLoad:
        """Run the load, scaling each service in sequence, with `rest_s` of load before and after."""
        async with AsyncClient(self._suite.endpoint.public) as client:
            load = FaultedLoad(client, cached_every=2, make=request_of)
            await load.generate_reference()
            stop = asyncio.Event()
            busy = load.start(clients, stop)
            await asyncio.sleep(rest_s)
            async with self._scaled("unet_worker"):
                for service in ("controlnet_svc", "embedder"):
                    async with self._scaled(service):
                        await asyncio.sleep(rest_s)
            await asyncio.sleep(rest_s)
            stop.set()
            await asyncio.wait(busy)
            await load.ask_again()
        return load

    @asynccontextmanager
    async def _scaled(self, service: str) -> AsyncIterator[None]:
        """Scale to `MOST` inside the block, and back to one after it."""
        began_s = time.monotonic()
        command = asyncio.create_task(self._command(service, MOST))
        names = await self._added(service)
        added = await asyncio.gather(*(self._watch(service, name, began_s) for name in names))
        await command
        yield
        began_s = time.monotonic()
        await self._command(service, 1)
        killed = [name for name in names if "did not stop" in self._suite.log("supervisor")]
        self.scaled.append(ScaledService(service, list(added), time.monotonic() - began_s, killed))
        print(self.scaled[-1], flush=True)

    async def _command(self, service: str, count: int) -> None:
        command = [sys.executable, "-m", "pentimento.cli", "scale", service, str(count)]
        process = await asyncio.create_subprocess_exec(
            *command, "--state-dir", str(self._suite.state.path), stdout=subprocess.DEVNULL, env=os.environ
        )
        if await process.wait():
            raise RuntimeError(f"{service} was not scaled to {count}")

    async def _added(self, service: str) -> list[str]:
        while len(states := self._files.there()[service].states) < MOST:  # noqa: ASYNC110 - a file
            await asyncio.sleep(LOOK_S)
        return list(states)[1:]

    async def _watch(self, service: str, name: str, began_s: float) -> AddedReplica:
        while self._files.there()[service].states.get(name) != "serving":  # noqa: ASYNC110 - a file
            await asyncio.sleep(LOOK_S)
        up_s = time.monotonic()
        async with open_channel(f"unix:{self._suite.state.sockets / name}.sock", RpcChannelSettings()) as channel:
            while not await WORK[service](channel) and time.monotonic() - up_s < WORK_LIMIT_S:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        return AddedReplica(name, up_s - began_s, time.monotonic() - up_s)


def figures_of(trial: ScalingTrial, load: FaultedLoad) -> list[Figure]:
    figures = []
    for scaled in trial.scaled:
        waits = [replica.work_s for replica in scaled.added]
        ups = [replica.up_s for replica in scaled.added]
        name = f"{scaled.service}: the later of the added replicas has done work after being ready"
        figures.append(Figure(name, max(waits), at_most(SERVES_WITHIN_S, "s"), len(waits)))
        figures.append(Figure(f"{scaled.service}: command to ready", max(ups), informative("s"), len(ups)))
        figures.append(Figure(f"{scaled.service}: removed replicas drained", scaled.down_s, informative("s")))
    killed = [name for scaled in trial.scaled for name in scaled.killed]
    figures.append(Figure("removed replicas that had to be killed", len(killed), at_most(0, "replicas")))
    return [*figures, *request_figures(load.samples)]


def main() -> int:
    options = parse_options("scaling", __doc__, add_options)
    flags = ["--controlnets", "tiny", "--device", "cpu", "--threads", "1"]
    with local_suite(flags, environment=ENVIRONMENT) as suite:
        journal = suite.state.path / "frontdoor.sqlite"
        count_commits(journal)
        trial = ScalingTrial(suite)
        load = asyncio.run(trial.run(options.rest["clients"], 2.0 if options.quick else 10.0))
        read_journal(journal, load.samples)
    return publish(options, figures_of(trial, load), notes={"clients": options.rest["clients"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=8, help="clients with one request in flight each")


if __name__ == "__main__":
    raise SystemExit(main())
