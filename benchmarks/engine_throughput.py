"""Images per second at equal p95: our worker against the same model behind LitServe at its best.

One Poisson stream of pictures with mixed remaining steps (50 less K, K as caches leave it) is offered to each side at
changing rates; a side's figure is the most images per second at which 95 % of the answers came within the bound, which
is the same for both: `--bound` times the time of one picture alone.

First, shorter runs find LitServe's best pair of batch size and time-out in the grid: a pair is given up when it breaks
the promise at the best rate so far under two streams. Then both sides take turns, each seed a round in which either
climbs to the most it can; the figure is over the rounds, and the notes hold every run. Both sides compute with one
torch thread, decode and encode PNGs; ours reads its donors from an object store, theirs from memory.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.climbing import STEP, Promise, Run, Trial, best, climb, climb_up
from benchmarks.litserve_side import litserve_side
from benchmarks.report import Figure, Options, at_least, informative, measured, parse_options, publish
from benchmarks.worker_load import FIRST_STEPS, Ask, lone_picture_s, worker_under_load
from benchmarks.worker_process import worker_process
from pentimento.sdk.supervisor.models import find_model

TARGET = at_least(1.5, "x")
# Batch size and time-out in seconds; a batch of one waits for nobody. What is likely best comes first.
GRID = ((4, 0.0), (2, 0.0), (8, 0.0), (1, 0.0), (16, 0.0), (2, 0.1), (4, 0.1), (8, 0.1), (16, 0.1))
SEARCH_SEEDS = (100, 101)


@dataclass
class Findings:
    """All runs, LitServe's best pair, and by round what both sides could do."""

    lone_s: float
    promise: Promise
    runs: list[Run] = field(default_factory=list)
    pair: tuple[int, float] = GRID[0]
    rounds: list[tuple[float, float]] = field(default_factory=list)


def main() -> int:
    options = parse_options("engine_throughput", __doc__, add_options)
    found = asyncio.run(compare(options))
    ours, theirs = ([pair[side] for pair in found.rounds] for side in (0, 1))
    figures = [
        measured("images per second, ours / LitServe's best", found.rounds, ratio_of_sums, TARGET),
        measured("ours", ours, mean, informative("images/s")),
        measured("LitServe at its best", theirs, mean, informative("images/s")),
        Figure("bound of p95", found.promise.p95_s, informative("s"), [found.lone_s], None),
    ]
    notes = {
        **options.rest,
        "grid": [{"max_batch_size": size, "batch_timeout_s": wait} for size, wait in grid_of(options)],
        "best_of_grid": dict(zip(("max_batch_size", "batch_timeout_s"), found.pair, strict=True)),
        "first_steps": FIRST_STEPS,
        "lone_picture_s": found.lone_s,
        "search_seeds": SEARCH_SEEDS,
        "seeds": "the round's number",
        "torch_threads": 1,
        "runs": [run.row() for run in found.runs],
    }
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--requests", type=int, default=90, help="requests of a run that counts")
    parser.add_argument("--search-requests", type=int, default=40, help="requests of a run that searches the grid")
    parser.add_argument("--rounds", type=int, default=2, help="seeds under which both sides are measured")
    parser.add_argument("--bound", type=float, default=8.0, help="p95 in units of a lone picture's time")
    parser.add_argument("--max-batch", type=int, default=16, help="of our worker")


def grid_of(options: Options) -> Sequence[tuple[int, float]]:
    return GRID[:1] if options.quick else GRID


async def compare(options: Options) -> Findings:
    model = find_model(options.rest["model"]).path
    async with our_side(model, options.rest["max_batch"]) as ask:
        lone_s = await lone_picture_s(ask)
        found = Findings(lone_s, Promise(options.rest["bound"] * lone_s))
        ours = partial(Trial, "worker", ask, found.promise)
        rate = await our_rate(options, found, ours)
        their_rate = await search_grid(options, found, model)
        async with AsyncExitStack() as stack:
            name, their_ask = await enter_litserve(stack, model, found.pair)
            theirs = partial(Trial, name, their_ask, found.promise)
            await run_rounds(options, found, (ours, theirs), (rate, their_rate))
    return found


@asynccontextmanager
async def our_side(model: Path, max_batch: int) -> AsyncIterator[Ask]:
    with worker_process(model, "--threads", "1", "--max-batch", str(max_batch), "--credits", "256") as address:
        async with worker_under_load(address) as worker:
            yield worker.ask


async def enter_litserve(stack: AsyncExitStack, model: Path, pair: tuple[int, float]) -> tuple[str, Ask]:
    size, wait = pair
    return f"litserve {size} {wait:g} s", await stack.enter_async_context(litserve_side(model, size, wait))


def requests_of(options: Options, name: str) -> int:
    return 8 if options.quick else int(options.rest[name])


async def our_rate(options: Options, found: Findings, ours: "partial[Trial]") -> float:
    """Where our rounds begin."""
    trial = ours(requests_of(options, "search_requests"), "search")
    found.runs += await climb(partial(trial.run, seed=SEARCH_SEEDS[0]), 1.2 / found.lone_s)
    return fastest(found.runs).rate_per_s


async def search_grid(options: Options, found: Findings, model: Path) -> float:
    """Tries every pair; the rate that the best one held at. Raises RuntimeError when none held any rate."""
    climbed: list[Run] = []
    for pair in grid_of(options):
        async with AsyncExitStack() as stack:
            name, ask = await enter_litserve(stack, model, pair)
            trial = Trial(name, ask, found.promise, requests_of(options, "search_requests"), "search")
            runs = await outdo(trial, climbed, 0.9 / found.lone_s)
        found.runs += runs
        if any(run.held for run in runs):
            found.pair = pair
            climbed += runs
    return fastest(climbed).rate_per_s


async def outdo(trial: Trial, climbed: Sequence[Run], first_rate: float) -> list[Run]:
    """The first pair climbs from `first_rate`; whoever comes later starts a step above the best so far, and is given up
    when that breaks under both streams."""
    before = best(climbed)
    if before is None:
        return await climb(partial(trial.run, seed=SEARCH_SEEDS[0]), first_rate)
    runs: list[Run] = []
    for seed in SEARCH_SEEDS:
        runs += await climb_up(partial(trial.run, seed=seed), before.rate_per_s * STEP)
        if best(runs):
            break
    return runs


def fastest(runs: Sequence[Run]) -> Run:
    found = best(runs)
    if found is None:
        raise RuntimeError(f"the bound was never kept: {[run.row() for run in runs]}")
    return found


async def run_rounds(
    options: Options, found: Findings, sides: "tuple[partial[Trial], partial[Trial]]", rates: tuple[float, float]
) -> None:
    for seed in range(1 if options.quick else options.rest["rounds"]):
        reached: dict[int, float] = {}
        for side in (0, 1) if seed % 2 == 0 else (1, 0):
            trial = sides[side](requests_of(options, "requests"), "measure")
            runs = await climb(partial(trial.run, seed=seed), rates[side])
            found.runs += runs
            reached[side] = fastest(runs).images_per_s
        found.rounds.append((reached[0], reached[1]))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
