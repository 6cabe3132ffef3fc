"""Run suites of emulated devices under open-loop load from the public client, and record the requests."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np

from lab.emulation.fleet_file import EmulatedFleet, label_of, largest_batch, measured_batches
from lab.runs import RequestRecord
from lab.runs.load import LoadSettings, Score, play
from lab.runs.machine import ROOT
from lab.workloads import Content, SloClass, Workload, poisson
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Fleet
from pentimento.domain.image_request import CacheMode, Completed
from pentimento.rpc import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite

LOOK_S = 0.5
FLEETS = ROOT / "scenarios" / "fleets"
# Every request has a different prompt: no cache helps, and confidences follow the fleet's distribution.
PROMPTS = tuple(f"a picture, number {number}" for number in range(20_000))


@contextmanager
def emulated_suite(
    fleet: Path, flags: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Iterator[LocalSuite]:
    with local_suite(["--emulate", str(fleet), *flags], environment=environment) as suite:
        yield suite


@asynccontextmanager
async def clients_of(suite: LocalSuite, tokens: Mapping[str, str]) -> AsyncIterator[dict[str, AsyncClient]]:
    """Yield a client for each tenant, by its token; {"": ""} for one shared client."""
    async with AsyncExitStack() as stack:
        yield {
            tenant: await stack.enter_async_context(AsyncClient(suite.endpoint.public, token=token))
            for tenant, token in tokens.items()
        }


def quality_of(completed: Completed) -> float | None:
    label = label_of(completed.image)
    return label.quality if label is not None else None


async def played(
    workload: Workload,
    clients: Mapping[str, AsyncClient],
    *,
    detailed: bool = False,
    cache: CacheMode = CacheMode.OFF,
    score: Score = quality_of,
) -> list[RequestRecord]:
    """Return the record of every arrival; emulated images report their qualities."""
    gc.freeze()  # A full collection would delay the generator, and count as the suite's time.
    return await play(workload, clients, LoadSettings(cache=cache, detailed_stages=detailed), score=score)


@asynccontextmanager
async def fleet_readings(suite: LocalSuite, lead_s: float) -> AsyncIterator[list[tuple[float, Fleet]]]:
    """Read the fleet twice a second during the block, and yield the list of readings, each with the time since `lead_s`
    seconds from now."""
    looks: list[tuple[float, Fleet]] = []
    began = asyncio.get_running_loop().time() + lead_s

    async def look() -> None:
        async with open_channel(suite.endpoint.controller, client_settings()) as channel:
            client = ControllerClient(channel)
            while True:
                with suppress(PentimentoError):  # a busy machine answers the next look
                    looks.append((asyncio.get_running_loop().time() - began, await client.fleet()))
                await asyncio.sleep(LOOK_S)

    looking = asyncio.create_task(look())
    try:
        yield looks
    finally:
        looking.cancel()


def steady_load(
    rate: float,
    duration_s: float,
    slo_s: float,
    seed: int,
    *,
    tenants: Mapping[str, float] | None = None,
    steps: int = 50,
    model: str = "",
) -> Workload:
    """Return Poisson arrivals at `rate` a second, with tenants in their shares."""
    content = Content(
        prompts=PROMPTS,
        slo_classes=(SloClass("standard", slo_s),),
        tenants=tenants or {"default": 1.0},
        steps=steps,
        model=model,
        first_prompt=seed * 1_000 % len(PROMPTS),
    )
    return poisson(rate, duration_s, np.random.default_rng(seed), content)


def capacity_per_s(fleet: EmulatedFleet, name: str) -> float:
    """Return a model's images per second if every device that holds it at the start runs full batches."""
    model = fleet.model(name)
    total = 0.0
    for devices in fleet.devices:
        if devices.models[0] == name:
            batch = largest_batch(model, devices)
            largest = max((b for b in measured_batches(model) if b.batch_size <= batch), key=lambda b: b.batch_size)
            total += devices.count * devices.speed * largest.batch_size / (model.steps * largest.step.mean_s)
    return total
