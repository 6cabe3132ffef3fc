"""Time without generation while a worker under load changes between two models of 1 GB.

    python -m benchmarks.switch_gap

A UNet worker on the CPU holds one of two models with random weights, float32; the files are in the kernel's cache.
Two clients always have a request each at the model that it holds. Each side is a worker in a new process that changes
its model several times: next to it, the default here, with memory for both models; `staged`, with a
memory budget for one model and host memory for the next; `unload first`, without host memory for it (one MiB), and
measured again at each load, as before. A gap is the longest time without the end of a denoising step, from the order to
change until 20 steps of the next model. The first change includes the measurements of a model that the process has not
held before. The control is the longest time between 20 steps before each change.
"""

import asyncio
import gc
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from lab.fixtures.full_size import write_full_size_checkpoint
from lab.runs.measure import Figure, Options, at_most, informative, measured, parse_options, publish
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.execution import StepProgress
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, Route, Scheduler
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.rpc.server import SWITCH_INTERVAL_S
from services.unet_worker.models import loader
from services.unet_worker.models.model_switch import ModelSwitch
from services.unet_worker.process import WorkerProcess
from services.unet_worker.settings import UnetWorkerSettings
from services.unet_worker.wiring import wire

SIDE_PX, STEPS, CLIENTS = 64, 12, 2
CHANNELS, QUICK_CHANNELS = (160, 320, 704, 704), (32, 32, 64, 64)
# A request's steps before the first change, and of the next model that end a change.
STEPS_BEFORE, STEPS_AFTER = 20, 20
BESIDE, STAGED, UNLOAD_FIRST = "beside", "staged", "unload first"
_MIB = 2**20


@dataclass(frozen=True)
class SwitchTimes:
    """Hold one change of model: the longest time without a step, the seconds until the next model's first step, the
    longest and the usual time between steps before, and the way that the worker took."""

    gap_s: float
    first_step_s: float
    usual_gap_s: float
    step_s: float
    way: str


def settings_of(side: str, model_bytes: int) -> dict[str, Any]:
    if side == STAGED:
        # One model and the process itself.
        return {"memory_budget_mib": 2 * model_bytes // _MIB}
    return {"component_host_mib": 1} if side == UNLOAD_FIRST else {}


@asynccontextmanager
async def serving(models: Sequence[Path], folder: Path, settings: Mapping[str, Any]) -> AsyncIterator[WorkerProcess]:
    address = f"unix:{folder / 'worker'}"
    own = UnetWorkerSettings(
        RpcServerSettings(listen=(address,)),
        RpcChannelSettings(),
        models[0],
        other_models=tuple(models[1:]),
        objects_url=f"file://{folder / 'objects'}",
        max_batch=CLIENTS,
        **settings,
    )
    loader.PROGRESS_INTERVAL_S = 0.0  # every step has a message
    process = wire(own)
    await process.server.start()
    try:
        await process.warm()
        process.server.set_serving()
        yield process
    finally:
        await process.close()
        await process.server.stop()


class Clients:
    """Keep requests at the model that the worker holds, and note the times of all steps by model."""

    def __init__(self, process: WorkerProcess, client: WorkerClient) -> None:
        self._process = process
        self._client = client
        self._numbers = itertools.count(1)
        self._stepped = asyncio.Event()
        self.steps: list[tuple[float, str]] = []

    async def run(self) -> None:
        while True:
            try:
                await self._generate(next(self._numbers))
            except PentimentoError:  # it takes no requests, or holds another model by now
                await asyncio.sleep(0.01)

    async def until(self, count: int, model: str, since_s: float) -> None:
        """Wait for that many steps of a model."""
        async with asyncio.timeout(300):
            while sum(name == model and at_s >= since_s for at_s, name in self.steps) < count:
                self._stepped.clear()
                await self._stepped.wait()

    async def _generate(self, number: int) -> None:
        held = self._process.worker.loaded.held
        spec = GenerationSpec(
            prompt="a red circle",
            negative_prompt="",
            model=held.model,
            width_px=SIDE_PX,
            height_px=SIDE_PX,
            num_inference_steps=STEPS,
            guidance_scale=3.0,
            scheduler=Scheduler.DDIM,
            seed=number,
        )
        route = Route(f"route-{number}", FromNoise(), held.model, held.model_digest)
        attempt = Attempt(f"request-{number}", 1, number, "frontdoor", 1, "default")
        async for event in self._client.execute(attempt, spec, route, held.worker_generation):
            if isinstance(event, StepProgress):
                self.steps.append((time.monotonic(), held.model))
                self._stepped.set()


async def changes_of(side: str, models: Sequence[Path], model_bytes: int, count: int) -> list[SwitchTimes]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as name:
        folder = Path(name)
        async with (
            serving(models, folder, settings_of(side, model_bytes)) as process,
            open_channel(f"unix:{folder / 'worker'}", RpcChannelSettings()) as channel,
        ):
            clients = Clients(process, WorkerClient(channel))
            running = [asyncio.create_task(clients.run()) for _ in range(CLIENTS)]
            try:
                return [
                    await one_change(process, clients, side, models[number % 2].name) for number in range(1, count + 1)
                ]
            finally:
                for task in running:
                    task.cancel()


async def one_change(process: WorkerProcess, clients: Clients, side: str, model: str) -> SwitchTimes:
    switch = process.worker.loaded
    assert isinstance(switch, ModelSwitch)
    settled_s = time.monotonic()
    await clients.until(STEPS_BEFORE, switch.held.model, settled_s)
    if side == UNLOAD_FIRST:
        switch._loader._known.clear()
    began_s = time.monotonic()
    switch.assign(model, 0)
    await clients.until(STEPS_AFTER, model, began_s)
    before = [at_s for at_s, _ in clients.steps if settled_s <= at_s < began_s]
    during = [began_s, *(at_s for at_s, _ in clients.steps if at_s >= began_s)]
    first_s = next(at_s for at_s, name in clients.steps if name == model and at_s >= began_s)
    assert switch.change is not None
    usual = between(before)
    return SwitchTimes(max(between(during)), first_s - began_s, max(usual), median(usual), switch.change.way.value)


def between(times_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times_s)]


def play(side: str, models: Sequence[Path], model_bytes: int, count: int) -> list[SwitchTimes]:
    """Return the changes of a worker in a new process: memory of an earlier side would count."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        changes = process.submit(in_process, side, models, model_bytes, count).result()
    print(side, changes, flush=True)
    if {one.way for one in changes} != {side.replace(" ", "_")}:
        raise SystemExit(f"{side}: the worker took another way")
    return changes


def in_process(side: str, models: Sequence[Path], model_bytes: int, count: int) -> list[SwitchTimes]:
    # As a service's process does.
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return asyncio.run(changes_of(side, models, model_bytes, count))


def figures_of(found: Mapping[str, Sequence[SwitchTimes]]) -> list[Figure]:
    gaps = {side: [one.gap_s for one in changes] for side, changes in found.items()}
    figures = []
    for side in (side for side in found if side != UNLOAD_FIRST):
        pairs = list(zip(gaps[side][1:], gaps[UNLOAD_FIRST][1:], strict=True))
        figures.append(measured(f"{side}: gap", gaps[side][1:], median, at_most(1.0, "s")))
        figures.append(measured(f"{side}: gap ÷ unload first's", pairs, ratio, at_most(0.2)))
    figures.append(measured(f"{UNLOAD_FIRST}: gap", gaps[UNLOAD_FIRST][1:], median, informative("s")))
    for side, changes in found.items():
        first_steps = [one.first_step_s for one in changes[1:]]
        figures += [
            Figure(f"{side}: gap of the first change", gaps[side][0], informative("s")),
            measured(f"{side}: seconds to the next model's first step", first_steps, median, informative("s")),
            measured(
                f"{side}: longest between steps before", [one.usual_gap_s for one in changes], median, informative("s")
            ),
            measured(f"{side}: seconds between steps", [one.step_s for one in changes], median, informative("s")),
        ]
    return figures


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    ours, theirs = zip(*pairs, strict=True)
    return median(ours) / median(theirs)


def run(options: Options) -> int:
    with tempfile.TemporaryDirectory(prefix="pmt-") as name:
        channels = QUICK_CHANNELS if options.quick else CHANNELS
        models = [
            write_full_size_checkpoint(Path(name) / f"model-{seed}", SIDE_PX, seed=seed, block_out_channels=channels)
            for seed in range(2)
        ]
        model_bytes = sum(path.stat().st_size for path in models[0].rglob("*.safetensors"))
        sides = (BESIDE, UNLOAD_FIRST) if options.quick else (BESIDE, STAGED, UNLOAD_FIRST)
        found = {side: play(side, models, model_bytes, 3) for side in sides}
    return publish(options, figures_of(found), notes={"model_mb": model_bytes / 1e6, "clients": CLIENTS})


if __name__ == "__main__":
    raise SystemExit(run(parse_options("switch_gap", __doc__)))
