"""Measure how late a worker's event loop runs due callbacks while its engine is under full load.

The worker runs in this process, with its real server on a socket; another process keeps its batches full, requests
previews and captures latents. The worker's probe measures the lag. Above the target the engine would need a separate
process.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.worker_load import WorkerArrival, worker_under_load
from lab.fixtures.worker_process import START_S
from lab.runs.intervals import percentile
from lab.runs.measure import Figure, Options, at_most, informative, measured, parse_options, publish
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.service.credits import LoopLagProbe
from pentimento.supervisor.models import find_model
from services.unet_worker.process import WorkerProcess
from services.unet_worker.settings import UnetWorkerSettings
from services.unet_worker.wiring import wire

MAX_BATCH = 8
STREAMS = 2 * MAX_BATCH
p99 = percentile(0.99)


def main() -> int:
    options = parse_options("engine_lag", __doc__, add_options)
    if options.rest["load"]:
        asyncio.run(keep_busy(options.rest["load"]))
        return 0
    idle, busy = asyncio.run(measure(options, find_model(options.rest["model"]).path))
    notes = {"model": options.rest["model"], "max_batch": MAX_BATCH, "streams": STREAMS}
    return publish(options, figures_of(idle, busy), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the load lasts")
    parser.add_argument("--load", default="", help="(used by the benchmark) run the load on this address")


async def measure(options: Options, model: Path) -> tuple[list[float], list[float]]:
    """Return lags in milliseconds: idle, and under load."""
    seconds = 5.0 if options.quick else options.rest["seconds"]
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with served(model, Path(folder)) as (process, address):
            idle = await lags_of(process, seconds / 5)
            async with load_process(address):
                await until_full(process)
                busy = await lags_of(process, seconds)
    return idle, busy


@asynccontextmanager
async def load_process(address: str) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "benchmarks.engine_lag", "--load", address]
    load = await asyncio.create_subprocess_exec(*command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield
    finally:
        load.terminate()
        await load.wait()


@asynccontextmanager
async def served(model: Path, folder: Path) -> AsyncIterator[tuple[WorkerProcess, str]]:
    address = f"unix:{folder}/worker"
    settings = UnetWorkerSettings(
        RpcServerSettings(listen=(address,)),
        RpcChannelSettings(),
        model,
        objects_url=f"file://{folder}/objects",
        max_batch=MAX_BATCH,
        credits=256,
    )
    process = wire(settings)
    await process.server.start()
    try:
        await process.warm()
        process.server.set_serving()
        yield process, address
    finally:
        await process.close()
        await process.server.stop()


async def lags_of(process: WorkerProcess, seconds: float) -> list[float]:
    """Measure with a second probe of the worker's kind."""
    lags: list[float] = []
    probe = LoopLagProbe(lambda lag_s: lags.append(lag_s * 1e3))
    probe.start()
    await asyncio.sleep(seconds)
    probe.close()
    return lags


async def until_full(process: WorkerProcess) -> None:
    async with asyncio.timeout(START_S):
        while True:
            if process.worker.loaded.running_count >= MAX_BATCH:
                return
            await asyncio.sleep(0.1)


async def keep_busy(address: str) -> None:
    """Run enough streams to fill two batches, each requesting its next image after the last one, until cancelled."""
    async with worker_under_load(address) as worker:
        steps = (0, *sorted(worker.donors))

        async def stream(number: int) -> None:
            while True:
                number += STREAMS
                await worker.ask(WorkerArrival(number, 0.0, steps[number % len(steps)]))

        await asyncio.gather(*(stream(number) for number in range(STREAMS)))


def figures_of(idle: Sequence[float], busy: Sequence[float]) -> list[Figure]:
    return [
        measured("event-loop lag under load, p99", busy, p99, at_most(20, "ms")),
        measured("event-loop lag under load, median", busy, statistics.median, informative("ms")),
        measured("event-loop lag without load, p99", idle, p99, informative("ms")),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
