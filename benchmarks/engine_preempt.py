"""Compare the p99 of short-deadline requests among long ones with and without preemption, and its cost.

Two workers that differ only in `--preempt` alternate on the same Poisson streams: long images (all steps, no deadline)
keep the device busy, and short ones (the last steps of a cached latent) have early deadlines. The rate follows from a
single image's time on this machine and exceeds what batching can serve, so that images per second are the device's
limit. Deadlines only set the order: they are so late that every short request is answered, and its latency counts. A
failed request on either side ends the run without figures.
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.worker_load import (
    STEPS,
    Answer,
    StreamOutcome,
    WorkerArrival,
    WorkerUnderLoad,
    drive,
    failures,
    latency_quantile,
    poisson,
    shifted,
    single_image_s,
    worker_under_load,
)
from lab.fixtures.worker_process import worker_process
from lab.runs.intervals import percentile, ratio_of_sums
from lab.runs.measure import (
    Figure,
    Options,
    at_least,
    at_most,
    drawn_orders,
    informative,
    measured,
    parse_options,
    publish,
)
from pentimento.supervisor.models import find_model

SHORT_FIRST_STEP = 40
# far beyond every wait, and far before requests without a deadline are due
DEADLINE_MS = 1_800_000
AGING_LIMIT_S = 7_200
SIDES = {"with": "--preempt", "without": "--no-preempt"}


def main() -> int:
    options = parse_options("engine_preempt", __doc__, add_options)
    lone_s, rounds = asyncio.run(run_rounds(options))
    notes = {**options.rest, "lone_image_s": lone_s, "rate_per_s": rate_per_s(options, lone_s)}
    return publish(options, figures_of(rounds), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=64, help="requests of a round")
    parser.add_argument("--short-every", type=int, default=2, help="every n-th request is short")
    parser.add_argument("--load", type=float, default=2.5, help="offered steps ÷ steps of single images in sequence")
    parser.add_argument("--max-batch", type=int, default=4)


def rate_per_s(options: Options, lone_s: float) -> float:
    """Return requests per second for `--load`. Batches of 4 give about 1.9 times the throughput on a CPU."""
    short_share = 1 / options.rest["short_every"]
    mean_steps = short_share * (STEPS - SHORT_FIRST_STEP) + (1 - short_share) * STEPS
    return float(options.rest["load"] * STEPS / mean_steps / lone_s)


def stream(options: Options, rate: float, number: int) -> list[WorkerArrival]:
    """Return the same stream for both sides."""
    count, every = 9 if options.quick else options.rest["requests"], options.rest["short_every"]
    arrivals = shifted(poisson(rate, count, seed=number, first_steps=(0,)), number * count)
    return [
        replace(arrival, first_step=SHORT_FIRST_STEP, deadline_ms=DEADLINE_MS)
        if index % every == every - 1
        else arrival
        for index, arrival in enumerate(arrivals)
    ]


async def run_rounds(options: Options) -> tuple[float, list[dict[str, StreamOutcome]]]:
    """Return the seconds of a single image, and the stream's outcome by round and side."""
    model = find_model(options.rest["model"]).path
    async with AsyncExitStack() as stack:
        workers = {name: await enter_worker(stack, options, model, flag) for name, flag in SIDES.items()}
        lone_s = await single_image_s(workers["with"].ask, 1 if options.quick else 5)
        rounds = []
        for number in range(1 if options.quick else options.rest["rounds"]):
            (names,) = drawn_orders(workers, 1, seed=number)
            arrivals = stream(options, rate_per_s(options, lone_s), number)
            outcomes = {name: await drive(workers[name].ask, arrivals) for name in names}
            for name, outcome in outcomes.items():
                slowest = latency_quantile(short(outcome), 0.99)
                print(
                    f"round {number} {name}: {outcome.images_per_s:.2f} images/s, short p99 {slowest:.2f} s", flush=True
                )
            rounds.append(outcomes)
        return lone_s, rounds


async def enter_worker(stack: AsyncExitStack, options: Options, model: Path, flag: str) -> WorkerUnderLoad:
    flags = [
        flag,
        "--max-batch",
        str(options.rest["max_batch"]),
        "--credits",
        "256",
        "--aging-limit-s",
        str(AGING_LIMIT_S),
    ]
    address = stack.enter_context(worker_process(model, *flags))
    return await stack.enter_async_context(worker_under_load(address, (SHORT_FIRST_STEP,)))


def short(outcome: StreamOutcome) -> list[Answer]:
    return [answer for answer in outcome.answers if answer.arrival.deadline_ms]


RATIO = "p99 of short requests, with / without preemption"
RATIO_TARGET = at_most(0.5, "x")
THROUGHPUT = "images per second, with / without preemption"
THROUGHPUT_TARGET = at_least(0.97, "x")


def figures_of(rounds: Sequence[dict[str, StreamOutcome]]) -> list[Figure]:
    if any(failures(outcome) for one in rounds for outcome in one.values()):
        return [Figure(RATIO, None, RATIO_TARGET), Figure(THROUGHPUT, None, THROUGHPUT_TARGET)]
    # grouped by round for the interval: waits within a round are correlated
    latencies = [[[answer.latency_s for answer in short(one[name])] for one in rounds] for name in SIDES]
    pairs = [list(zip(*one, strict=True)) for one in zip(*latencies, strict=True)]
    throughputs = [(one["with"].images_per_s, one["without"].images_per_s) for one in rounds]
    return [
        measured(RATIO, pairs, ratio_of_p99, RATIO_TARGET),
        measured(THROUGHPUT, throughputs, ratio_of_sums, THROUGHPUT_TARGET),
        measured("p99 of short requests with preemption", latencies[0], p99, informative("s")),
        measured("p99 of short requests without", latencies[1], p99, informative("s")),
    ]


def p99(rounds: Sequence[Sequence[float]]) -> float:
    return percentile(0.99)([latency_s for one in rounds for latency_s in one])


def ratio_of_p99(rounds: Sequence[Sequence[tuple[float, float]]]) -> float:
    quick, slow = ([[pair[side] for pair in one] for one in rounds] for side in (0, 1))
    return p99(quick) / p99(slow)


if __name__ == "__main__":
    raise SystemExit(main())
