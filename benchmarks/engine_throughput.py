"""Images per second at equal p95: our worker against the same model behind LitServe at its best.

One Poisson stream of pictures with mixed remaining steps (50 less K, K as caches leave it) is offered to each side at
rising rates; a side's figure is the most images per second at which 95 % of the answers came within the bound, which is
the same for both: `--bound` times the time of one picture alone. LitServe gets every pair of batch size and time-out of
the grid, and the best one counts; a pair that does not hold the best rate so far is not tried further. Both sides
compute with one torch thread, decode and encode PNGs; ours reads its donors from an object store, theirs from memory.
"""

import argparse
import asyncio
import itertools
import math
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file

from benchmarks.litserve_server import litserve_process
from benchmarks.report import Figure, Options, at_least, informative, parse_options, publish
from benchmarks.worker_load import (
    FIRST_STEPS,
    START_S,
    Arrival,
    Outcome,
    drive,
    failures,
    poisson,
    shifted,
    worker_process,
    worker_under_load,
)
from pentimento.diffusion.families import load_model
from pentimento.sdk.supervisor.models import find_model

Ask = Callable[[Arrival], Awaitable[None]]

TARGET = at_least(1.5, "x")
GRID = tuple(itertools.product((1, 2, 4, 8, 16), (0.0, 0.05, 0.2)))
LONE_PICTURES = 5
# Rates rise by this factor; the last one that held is the figure's.
STEP_UP = 1.12
OUR_BATCH = 16


@dataclass(frozen=True)
class Run:
    """A stream at one rate: what came of it, and whether p95 kept to the bound."""

    side: str
    rate_per_s: float
    images_per_s: float
    p50_s: float
    p95_s: float
    failed: int
    held: bool


@dataclass(frozen=True)
class Plan:
    """How many requests a run has, and what its p95 must keep to."""

    count: int
    bound_s: float
    seed: int = 0


def main() -> int:
    options = parse_options("engine_throughput", __doc__, add_options)
    runs, bound_s = asyncio.run(compare(options))
    ours, theirs = best(runs, "worker"), best(runs, "litserve")
    figures = [
        Figure("images per second, ours / LitServe's best", ours / theirs, TARGET, [ours, theirs], None),
        Figure("ours", ours, informative("images/s"), samples(runs, "worker"), None),
        Figure("LitServe at its best", theirs, informative("images/s"), samples(runs, "litserve"), None),
        Figure("bound of p95", bound_s, informative("s"), [bound_s], None),
    ]
    notes = {
        "model": options.rest["model"],
        "grid": [{"max_batch_size": size, "batch_timeout_s": wait} for size, wait in grid_of(options)],
        "our_max_batch": OUR_BATCH,
        "first_steps": FIRST_STEPS,
        "requests_a_run": requests_of(options),
        "seed": 0,
        "torch_threads": 1,
    }
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--requests", type=int, default=120, help="requests of a run")
    parser.add_argument("--bound", type=float, default=8.0, help="p95 in units of a lone picture's time")


def grid_of(options: Options) -> tuple[tuple[int, float], ...]:
    return ((4, 0.05),) if options.quick else GRID


def requests_of(options: Options) -> int:
    return 12 if options.quick else int(options.rest["requests"])


def best(runs: list[Run], side: str) -> float:
    held = [run.images_per_s for run in runs if run.side.startswith(side) and run.held]
    if not held:
        raise RuntimeError(f"{side} never kept to the bound: {samples(runs, side)}")
    return max(held)


def samples(runs: list[Run], side: str) -> list[dict[str, Any]]:
    return [
        {name: None if value == math.inf else value for name, value in vars(run).items()}
        for run in runs
        if run.side.startswith(side)
    ]


async def compare(options: Options) -> tuple[list[Run], float]:
    model = find_model(options.rest["model"]).path
    async with our_side(model) as ask:
        lone_s = await lone_picture_s(ask)
        plan = Plan(requests_of(options), options.rest["bound"] * lone_s)
        runs = await climb(f"worker max_batch={OUR_BATCH}", ask, plan, 1.0 / lone_s)
    rate = 0.7 / lone_s
    for max_batch, timeout_s in grid_of(options):
        async with their_side(model, max_batch, timeout_s) as ask:
            climbed = await climb(f"litserve max_batch={max_batch} timeout={timeout_s}", ask, plan, rate)
        runs += climbed
        rate = max([rate, *(run.rate_per_s * STEP_UP for run in climbed if run.held)])
    return runs, plan.bound_s


async def lone_picture_s(ask: Ask) -> float:
    """Mean seconds of pictures from noise, one after the other."""
    began = time.monotonic()
    for number in range(LONE_PICTURES):
        await ask(Arrival(-1 - number, 0.0, 0))
    return (time.monotonic() - began) / LONE_PICTURES


async def climb(side: str, ask: Ask, plan: Plan, rate_per_s: float) -> list[Run]:
    """Rising rates until one does not hold."""
    runs: list[Run] = []
    while not runs or runs[-1].held:
        arrivals = shifted(poisson(rate_per_s, plan.count, plan.seed), 1000 * len(runs))
        run = judged(side, rate_per_s, await drive(ask, arrivals), plan)
        print(f"{run.side}: {run.rate_per_s:.2f}/s {run.images_per_s:.2f} images/s p95 {run.p95_s:.2f} s", flush=True)
        runs.append(run)
        rate_per_s *= STEP_UP
    return runs


def judged(side: str, rate_per_s: float, outcome: Outcome, plan: Plan) -> Run:
    for failure in failures(outcome):
        print(f"{side}: {failure}", flush=True)
    p95_s = outcome.latency_s(0.95)
    failed = sum(bool(answer.error) for answer in outcome.answers)
    held = failed == 0 and p95_s <= plan.bound_s
    return Run(side, rate_per_s, outcome.images_per_s, outcome.latency_s(0.5), p95_s, failed, held)


@asynccontextmanager
async def our_side(model: Path) -> AsyncIterator[Ask]:
    flags = ["--threads", "1", "--max-batch", str(OUR_BATCH), "--credits", "256"]
    with worker_process(model, *flags) as address:
        async with worker_under_load(address) as worker:
            yield worker.ask


@asynccontextmanager
async def their_side(model: Path, max_batch: int, timeout_s: float) -> AsyncIterator[Ask]:
    with tempfile.TemporaryDirectory() as folder:
        donors = Path(folder) / "donors.safetensors"
        await asyncio.to_thread(write_donors, model, donors)
        port = free_port()
        with litserve_process(model, donors, port, max_batch, timeout_s):
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:
                await until_healthy(client)
                yield lambda arrival: ask_litserve(client, arrival)


def write_donors(model: Path, path: Path) -> None:
    """Unit-variance noise stands for the latents: what they show costs no time."""
    loaded = load_model(model, torch.device("cpu"), torch.float32)
    shape = loaded.latent_shape(loaded.info.default_width_px, loaded.info.default_height_px)
    save_file({str(step): torch.randn(shape) for step in FIRST_STEPS if step}, path)


async def ask_litserve(client: httpx.AsyncClient, arrival: Arrival) -> None:
    order = {"prompt": arrival.prompt, "seed": abs(arrival.number), "first_step": arrival.first_step}
    response = await client.post("/predict", json=order)
    response.raise_for_status()
    if not response.content.startswith(b"\x89PNG"):
        raise RuntimeError("LitServe answered with something else than a picture")


async def until_healthy(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                if (await client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    raise SystemExit(main())
