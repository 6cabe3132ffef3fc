"""Compare images per second at equal p95: our worker, and the same model in LitServe at its best settings.

A Poisson stream of images with mixed remaining steps (50 less K, with K as caches give it) goes to each side at
changing rates. A side's figure is the most images per second at which 95 % of the answers come within the bound, which
is the same for both: `--bound` times the time of a single image.

First, shorter runs find LitServe's best batch size and time-out, all with one stream: sizes without a time-out, then
time-outs at the best size (with a queue, a batch fills without waiting). A pair is abandoned if it misses the bound one
step above the best rate so far. Then both sides alternate; in each seed's round either climbs to its highest rate. The
figure is over the rounds, and the notes hold every run. Our worker's batch size is not tuned.

Both sides get one core for all their processes (the load comes from the others) and one torch thread; both decode and
encode PNGs. Ours reads its donors from an object store, LitServe's from memory. `--together` sets which parts of a
batch share forward passes in LitServe.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.peers.litserve import TOGETHER, litserve_side, write_donors
from benchmarks.worker_load import (
    STEP,
    WIDE_STEP,
    Ask,
    ClimbTrial,
    Promise,
    RateRun,
    best,
    climb,
    climb_up,
    limit_of,
    single_image_s,
    worker_under_load,
)
from lab.fixtures.worker_process import keep_off_a_core, worker_process
from lab.runs.intervals import paired_ratio, paired_ratio_interval
from lab.runs.measure import Figure, Interval, Options, at_least, informative, parse_options, publish
from pentimento.supervisor.models import find_model

TARGET = at_least(1.5, "x")
# LitServe's batch sizes, the likeliest best first, and the seconds that a partial batch waits.
SIZES = (4, 8, 2, 16, 1)
WAITS_S = (0.02, 0.2)
SEARCH_SEED = 100
# where the search begins, in images per single image's time
FIRST_RATE = 2.5


@dataclass
class Findings:
    """Collect all runs, LitServe's best pair of size and time-out, and by round the images per second of both sides."""

    lone_s: float
    promise: Promise
    runs: list[RateRun] = field(default_factory=list)
    pair: tuple[int, float] = (SIZES[0], 0.0)
    rounds: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Servers:
    """Start either side: the model, LitServe's donors, and the core (None: any)."""

    options: Options
    model: Path
    donors: Path
    core: int | None

    @asynccontextmanager
    async def ours(self) -> AsyncIterator[Ask]:
        flags = ("--threads", "1", "--max-batch", str(self.options.rest["max_batch"]), "--credits", "256")
        with worker_process(self.model, *flags, core=self.core) as address:
            async with worker_under_load(address) as worker:
                yield worker.ask

    @asynccontextmanager
    async def litserve(self, pair: tuple[int, float]) -> AsyncIterator[Ask]:
        together = self.options.rest["together"]
        async with litserve_side(self.model, self.donors, *pair, together=together, core=self.core) as ask:
            yield ask


def main() -> int:
    options = parse_options("engine_throughput", __doc__, add_options)
    core = keep_off_a_core()
    found = asyncio.run(compare(options, core))
    ours, theirs = ([pair[side] for pair in found.rounds] for side in (0, 1))
    figures = [
        ratio_figure("images per second, ours / LitServe's best", found.rounds),
        Figure("ours", fmean(ours), informative("images/s"), len(ours)),
        Figure("LitServe at its best", fmean(theirs), informative("images/s"), len(theirs)),
        Figure("bound of p95", found.promise.p95_s, informative("s"), 1),
    ]
    size, wait_s = found.pair
    notes = {**options.rest, "lone_image_s": found.lone_s, "litserve_batch_size": size, "litserve_wait_s": wait_s}
    return publish(options, figures, notes=notes)


def ratio_figure(name: str, pairs: Sequence[tuple[float, float]]) -> Figure:
    interval = None
    if len(pairs) > 1:
        interval = Interval(*paired_ratio_interval(pairs), "Student's t of the logarithms over rounds")
    return Figure(name, paired_ratio(pairs), TARGET, len(pairs), interval)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--requests", type=int, default=60, help="requests of a run that counts")
    parser.add_argument("--search-requests", type=int, default=36, help="requests of a run that searches")
    parser.add_argument("--rounds", type=int, default=3, help="seeds of both sides, up to 16")
    parser.add_argument("--bound", type=float, default=4.0, help="p95 in units of a single image's time")
    parser.add_argument("--max-batch", type=int, default=16, help="of our worker")
    parser.add_argument(
        "--together", choices=TOGETHER, default=TOGETHER[0], help="requests that share steps in LitServe"
    )


async def compare(options: Options, core: int | None) -> Findings:
    model = find_model(options.rest["model"]).path
    async with AsyncExitStack() as stack:
        donors = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "donors.safetensors"
        await asyncio.to_thread(write_donors, model, donors)
        servers = Servers(options, model, donors, core)
        async with servers.ours() as ask:
            lone_s = await single_image_s(ask)
        found = Findings(lone_s, promise_of(options, lone_s))
        rate = await search_grid(options, found, servers)
        await run_rounds(options, found, servers, [rate, rate])
    return found


def name_of(pair: tuple[int, float]) -> str:
    return f"litserve {pair[0]} {pair[1]:g} s"


def promise_of(options: Options, lone_s: float) -> Promise:
    """Return the bound, tighter for shorter streams: otherwise a whole stream at once would meet it."""
    return Promise(options.rest["bound"] * lone_s * (0.5 if options.quick else 1.0))


def requests_of(options: Options, name: str) -> int:
    return 24 if options.quick else int(options.rest[name])


async def search_grid(options: Options, found: Findings, servers: Servers) -> float:
    """Store the best pair in `found`, and return the rate that it held. Raises RuntimeError if none held any rate."""
    climbed: list[RateRun] = []
    for size in SIZES[:1] if options.quick else SIZES:
        climbed += await try_pair(options, found, servers, (size, 0.0), climbed)
    for wait_s in () if options.quick or found.pair[0] == 1 else WAITS_S:
        climbed += await try_pair(options, found, servers, (found.pair[0], wait_s), climbed)
    return limit_of(climbed).rate_per_s


async def try_pair(
    options: Options, found: Findings, servers: Servers, pair: tuple[int, float], climbed: Sequence[RateRun]
) -> list[RateRun]:
    """Return the pair's runs; store it as the best pair if one held."""
    async with servers.litserve(pair) as ask:
        trial = ClimbTrial(name_of(pair), ask, found.promise, requests_of(options, "search_requests"), "search")
        runs = await outdo(trial, climbed, FIRST_RATE / found.lone_s)
    found.runs += runs
    if best(runs):
        found.pair = pair
    return runs


async def outdo(trial: ClimbTrial, climbed: Sequence[RateRun], first_rate: float) -> list[RateRun]:
    """Climb: the first pair from `first_rate`, later ones from a step above the best rate so far, abandoned if they
    miss it."""
    run_at = partial(trial.run, seed=SEARCH_SEED)
    before = best(climbed)
    if before is not None:
        return await climb_up(run_at, before.rate_per_s * STEP)
    runs = await climb(run_at, first_rate, WIDE_STEP)
    found = best(runs)
    return runs if found is None else runs + await climb_up(run_at, found.rate_per_s * STEP)


async def run_rounds(options: Options, found: Findings, servers: Servers, rates: list[float]) -> None:
    """Let both sides climb by turns, the first time from `rates` and later from their last rate.

    The second side of a round starts at the first one's change of rate, since some streams are harder for both. Each
    server runs only during its climb: LitServe's waits for requests in a busy loop, on the core that both would share.
    """
    sides = (("worker", servers.ours), (name_of(found.pair), partial(servers.litserve, found.pair)))
    for seed in range(1 if options.quick else options.rest["rounds"]):
        reached: dict[int, float] = {}
        swing = 1.0
        for side in (0, 1) if seed % 2 == 0 else (1, 0):
            name, serve = sides[side]
            async with serve() as ask:
                trial = ClimbTrial(name, ask, found.promise, requests_of(options, "requests"), "measure")
                runs = await climb(partial(trial.run, seed=seed), rates[side] * swing)
            found.runs += runs
            limit = limit_of(runs)
            reached[side], swing, rates[side] = limit.images_per_s, limit.rate_per_s / rates[side], limit.rate_per_s
        found.rounds.append((reached[0], reached[1]))


if __name__ == "__main__":
    raise SystemExit(main())
