"""Time until a new worker is as fast as an established one: LoRAs from the store, from a peer, and ahead of need.

    python -m benchmarks.scale_up

Real processes: a controller, an established worker that has served all LoRAs, and one new worker after the other, each
with an empty disk. The model is tiny and the LoRAs are large (random weights, rank 1024), so that loads take most of
the time. The object store answers after 20 ms and sends 60 MB/s on each connection (`suites/slow_objects.py`).

Every request has two LoRAs, drawn by Zipf's law. It goes to the new worker, then to the established one. The new one is
as fast once eight requests in a row take at most 1.25 times as long as on the established one. Sides,
each with new processes, in a drawn order in each round:

- from the store: no controller, so that it knows neither peers nor demand;
- from a peer: its model's name has no demand, so that nothing is fetched ahead;
- with prefetch: the controller knows the uses of LoRAs with its model. While the model loads, the most used ones come
  to the disk; the plan names those of Eq. 5, which come to memory.

MLoRA, section 6.1.3: new instances are as fast as established ones 62.4 % sooner with scaling and caching together.
"""

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from urllib.request import urlopen

import numpy as np
import torch
from diffusers import UNet2DConditionModel

from benchmarks.suites.slow_objects import slow_objects
from lab.fixtures.checkpoints import write_checkpoint
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.fixtures.worker_process import start_on
from lab.fixtures.worker_under_test import await_serving
from lab.runs.measure import (
    Figure,
    Options,
    at_least,
    drawn_orders,
    informative,
    measured,
    parse_options,
    publish,
)
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.controller import CHUNK_BYTES, AdapterRegistryClient, ControllerClient
from pentimento.clients.worker import WorkerClient
from pentimento.diffusion.loras import layers_of
from pentimento.domain.adapters import Adapter, AdapterKind, LoraUpload
from pentimento.domain.demand import AdapterDemand, PoolDemand
from pentimento.domain.errors import PentimentoError
from pentimento.domain.execution import AttemptResult
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, LoraSelection, Route, Scheduler
from pentimento.files.file_sums import FileSums
from pentimento.rpc import RpcChannelSettings, open_channel

STORE, PEER, AHEAD = "from the store", "from a peer", "with prefetch"
# Paper: 62.4 %.
SAVED = 0.65
LORAS, LORA_RANK, A_REQUEST, ZIPF = 16, 1024, 2, 0.8
WINDOW, SLACK, MOST_REQUESTS = 8, 1.25, 48
STEPS = 4
FAMILY, MODEL, MODEL_WITHOUT_DEMAND = "stable_diffusion", "used", "unused"
ENDS = ("to_q", "to_k", "to_v", "conv1", "conv2")
REPORT_S = 0.5


@dataclass(frozen=True)
class Seconds:
    """Hold the times of a new worker, in seconds: from its start and from its first request until it is as fast; mean
    latency of the established worker; share of its components' bytes that a peer sent."""

    from_start: float
    from_serving: float
    established: float
    peer_share: float


@dataclass(frozen=True)
class ScaledSuite:
    """Hold the address of the controller, the LoRAs, the model's directory, and the object store's URL."""

    folder: Path
    controller: str
    loras: tuple[Adapter, ...]
    model: Path
    objects_url: str


def write_model(folder: Path) -> Path:
    """Write a small model, with a denoiser wide enough for large LoRAs."""
    write_checkpoint(folder)
    config = {**UNet2DConditionModel.load_config(folder / "unet"), "block_out_channels": (64, 128)}
    UNet2DConditionModel.from_config(config).save_pretrained(folder / "unet")
    return folder


def lora_files(folder: Path, model: Path, count: int) -> Iterator[Path]:
    unet = UNet2DConditionModel.from_pretrained(model / "unet")
    for seed in range(count):
        factors = random_factors(layers_of(FAMILY, {"unet": unet}), rank=LORA_RANK, seed=seed, ends=ENDS, size=0.002)
        (target := folder / f"lora-{seed:02d}").mkdir()
        yield write_diffusers_lora(target, factors, alpha=8.0)


async def upload(client: AdapterRegistryClient, file: Path) -> Adapter:
    found = FileSums().of(file)
    given = LoraUpload(file.parent.name, FAMILY, "none", found.size_bytes, found.digest)
    with file.open("rb") as opened:
        return await client.add_lora(given, iter(lambda: opened.read(CHUNK_BYTES), b""))


@contextmanager
def process(module: str, *flags: str) -> Iterator[None]:
    with start_on(None, [sys.executable, "-m", module, "--log-level", "warning", *flags]) as started:
        try:
            yield
        finally:
            started.kill()


@contextmanager
def worker(suite: ScaledSuite, folder: Path, name: str, *flags: str) -> Iterator[str]:
    """Start a worker with an empty disk for components; its address."""
    address = f"unix:{folder}/worker"
    given = ("--model", str(suite.model), "--model-name", name, "--objects-url", suite.objects_url, "--device", "cpu")
    own = ("--listen", address, "--component-cache-dir", f"{folder}/components", "--max-batch", "1", *flags)
    with process("services.unet_worker", *given, *own):
        yield address


def drawn_requests(loras: Sequence[Adapter], seed: int) -> list[list[Adapter]]:
    """Return the LoRAs of each request, a round's the same for every side."""
    rng, weights = np.random.default_rng(seed), 1.0 / np.arange(1, len(loras) + 1) ** ZIPF
    share = weights / weights.sum()
    drawn = (rng.choice(len(loras), A_REQUEST, replace=False, p=share) for _ in range(MOST_REQUESTS))
    return [[loras[index] for index in indices] for indices in drawn]


class ServingWorker:
    """Send requests to a worker that serves."""

    def __init__(self, client: WorkerClient, held: pb.HeldModel) -> None:
        self._client = client
        self._held = held
        self._number = 0

    async def seconds(self, loras: Sequence[Adapter]) -> float:
        """Return the seconds of a request."""
        held = self._held
        self._number += 1
        spec = GenerationSpec(
            prompt="a red circle",
            negative_prompt="",
            model=held.model,
            width_px=held.default_width_px,
            height_px=held.default_height_px,
            num_inference_steps=STEPS,
            guidance_scale=1.0,
            scheduler=Scheduler.DDIM,
            seed=self._number,
            loras=tuple(LoraSelection(one.name, 0.5, one.digest, one.object) for one in loras),
        )
        attempt = Attempt(f"request-{self._number}", 1, self._number, "benchmark", 1, "benchmark")
        route = Route("scale-up", FromNoise(), held.model, held.model_digest)
        began_s = time.perf_counter()
        async for event in self._client.execute(attempt, spec, route, held.worker_generation):
            if isinstance(event, AttemptResult):
                return time.perf_counter() - began_s
        raise SystemExit("a worker sent no result")


@asynccontextmanager
async def serving(address: str) -> AsyncIterator[ServingWorker]:
    async with open_channel(address, RpcChannelSettings()) as channel:
        held = (await await_serving(channel)).held
        yield ServingWorker(WorkerClient(channel), held)


async def report_demand(client: ControllerClient, loras: Sequence[Adapter]) -> None:
    """Report uses of LoRAs with the model as a frontdoor does, until cancelled."""
    door = Replica("door", ReplicaKind.FRONTDOOR, "unix:/none", time.time_ns() // 1_000_000)
    weights = 100.0 / np.arange(1, len(loras) + 1) ** ZIPF
    uses = tuple(
        AdapterDemand(AdapterKind.LORA, one.name, round(count)) for one, count in zip(loras, weights, strict=True)
    )
    demand = (PoolDemand(MODEL, sum(one.request_count for one in uses), adapters=uses),)
    while True:
        try:
            await client.report(ReplicaReport(door.instance_id, door.generation, demand=demand))
        except PentimentoError:
            await client.register(door)
        await asyncio.sleep(REPORT_S)


async def new_worker(suite: ScaledSuite, established: ServingWorker, side: str, seed: int) -> Seconds:
    """Start a worker, and send requests until it is as fast as the established one."""
    requests = drawn_requests(suite.loras, seed)
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            metrics = f"127.0.0.1:{free.getsockname()[1]}"
        known = () if side == STORE else ("--controller-address", suite.controller)
        flags = ("--metrics-listen", metrics, *known)
        began_s = time.perf_counter()
        with worker(suite, Path(folder), MODEL_WITHOUT_DEMAND if side == PEER else MODEL, *flags) as address:
            async with serving(address) as client:
                served_s = time.perf_counter()
                began, new, old = list[float](), list[float](), list[float]()
                while (matched := matched_at(new, old)) is None and len(new) < len(requests):
                    began.append(time.perf_counter())
                    loras = requests[len(new)]
                    new.append(await client.seconds(loras))
                    old.append(await established.seconds(loras))
            at_s = began[matched] if matched is not None else time.perf_counter()
            share = peer_share(metrics, Path(folder) / "components" / "blobs")
    return Seconds(at_s - began_s, at_s - served_s, fmean(old), share)


def matched_at(new: Sequence[float], old: Sequence[float]) -> int | None:
    """Return the first of WINDOW requests that take at most SLACK times as long on the new worker as on the old one;
    None if there is none."""
    for first in range(len(new) - WINDOW + 1):
        if sum(new[first : first + WINDOW]) <= SLACK * sum(old[first : first + WINDOW]):
            return first
    return None


def peer_share(metrics: str, blobs: Path) -> float:
    """Return the share of the bytes on a worker's disk that came from peers, by its metric."""
    with urlopen(f"http://{metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (sent,) = (float(line.split()[1]) for line in lines if line.startswith("pentimento_component_peer_bytes_total "))
    return sent / sum(file.stat().st_size for file in blobs.iterdir())


async def rounds_of(suite: ScaledSuite, rounds: int) -> dict[str, list[Seconds]]:
    found: dict[str, list[Seconds]] = {STORE: [], PEER: [], AHEAD: []}
    async with AsyncExitStack() as begun:
        folder = Path(begun.enter_context(tempfile.TemporaryDirectory(prefix="pmt-")))
        address = begun.enter_context(worker(suite, folder, MODEL, "--controller-address", suite.controller))
        established = await begun.enter_async_context(serving(address))
        for one in suite.loras:
            await established.seconds([one])
        controller = ControllerClient(
            await begun.enter_async_context(open_channel(suite.controller, RpcChannelSettings()))
        )
        demand = asyncio.create_task(report_demand(controller, suite.loras))
        begun.callback(demand.cancel)
        await until_known(controller, suite.loras)
        for number, sides in enumerate(drawn_orders(found, rounds)):
            for side in sides:
                found[side].append(await new_worker(suite, established, side, number))
                print(f"round {number + 1}, {side}: {found[side][-1]}", flush=True)
    return found


async def until_known(controller: ControllerClient, loras: Sequence[Adapter]) -> None:
    """Wait until the controller knows the demand, and the established worker's components."""
    async with asyncio.timeout(120):
        while True:
            found = await controller.find_components("new", model=MODEL)
            if len(found) == len(loras) and all(one.addresses for one in found):
                return
            await asyncio.sleep(0.2)


def figures_of(found: dict[str, list[Seconds]]) -> list[Figure]:
    def saved(pairs: Sequence[tuple[float, float]]) -> float:
        return 1.0 - median(ours for ours, _ in pairs) / median(theirs for _, theirs in pairs)

    figures = []
    for since in ("from_start", "from_serving"):
        title = f"{since.replace('_', ' its ')} until as fast"
        times = {side: [getattr(one, since) for one in of_side] for side, of_side in found.items()}
        for side in (AHEAD, PEER):
            pairs = list(zip(times[side], times[STORE], strict=True))
            target = at_least(SAVED) if side == AHEAD else informative()
            figures.append(measured(f"{title}: saved {side}", pairs, saved, target))
        figures += [measured(f"{title}: {side}", times[side], median, informative("s")) for side in times]
    for side in (PEER, AHEAD):
        shares = [one.peer_share for one in found[side]]
        figures.append(measured(f"bytes that the peer sent, {side}", shares, min, at_least(0.99)))
    latencies = {side: [one.established for one in of_side] for side, of_side in found.items()}
    pairs = list(zip(latencies[PEER], latencies[STORE], strict=True))
    name = "established worker's latency: while it sends ÷ while it does not"
    figures.append(measured(name, pairs, lambda some: median(a / b for a, b in some), informative()))
    figures.sort(key=lambda figure: figure.target.limit is None)
    return figures


async def measure(folder: Path, quick: bool) -> dict[str, list[Seconds]]:
    (served := folder / "served").mkdir()
    (uploaded := folder / "loras").mkdir()
    model, address = write_model(folder / "model"), f"unix:{folder}/controller"
    stores = ("--ledger-url", f"sqlite:///{folder}/ledger.sqlite", "--objects-url", f"file://{folder}/objects")
    with slow_objects(served) as objects, process("services.controller", "--listen", address, *stores):
        async with open_channel(address, RpcChannelSettings()) as channel:
            await channel.channel_ready()
            client = AdapterRegistryClient(channel)
            files = lora_files(uploaded, model, 4 if quick else LORAS)
            loras = tuple([await upload(client, file) for file in files])
        for file in (folder / "objects" / "objects").rglob("*"):
            if file.is_file():
                (served / file.name.rpartition(".")[2]).symlink_to(file)
        suite = ScaledSuite(folder, address, loras, model, f"s3://bucket?endpoint={objects}")
        return await rounds_of(suite, 1 if quick else 3)


def run(options: Options) -> int:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        found = asyncio.run(measure(Path(folder), options.quick))
    notes = {"loras": LORAS, "connections_mb_s": 60.0, "delay_ms": 20.0, "window": WINDOW, "slack": SLACK}
    return publish(options, figures_of(found), notes=notes)


if __name__ == "__main__":
    raise SystemExit(run(parse_options("scale_up", __doc__)))
