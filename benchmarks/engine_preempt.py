"""Requests with short deadlines among long ones: their p99 with preemption against without, and what it costs.

Two workers, alike but for `--preempt`, take turns at the same Poisson streams: long pictures (all steps, no deadline)
that keep the device busy, and short ones (the last steps of a cached latent) that are wanted soon. Latencies are pooled
over the rounds; a short request that misses its deadline counts as infinitely late.
"""

import argparse
import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, Options, at_least, at_most, informative, measured, parse_options, publish
from benchmarks.worker_load import (
    STEPS,
    Answer,
    Arrival,
    Outcome,
    drive,
    failures,
    latency_quantile,
    poisson,
    shifted,
    worker_process,
    worker_under_load,
)
from pentimento.sdk.supervisor.models import find_model

SHORT_FIRST_STEP = 40
SIDES = {"with": "--preempt", "without": "--no-preempt"}


def main() -> int:
    options = parse_options("engine_preempt", __doc__, add_options)
    rounds = asyncio.run(run_rounds(options))
    notes = {name: value for name, value in options.rest.items()} | {
        "short_first_step": SHORT_FIRST_STEP,
        "steps": STEPS,
        "seeds": "the round's number",
    }
    return publish(options, figures_of(rounds), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60, help="requests of a round")
    parser.add_argument("--short-share", type=float, default=0.3, help="share of requests with a short deadline")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second, enough to keep the device busy")
    parser.add_argument("--deadline-ms", type=int, default=20_000, help="of the short ones")
    parser.add_argument("--max-batch", type=int, default=4)


def stream(options: Options, number: int) -> list[Arrival]:
    """Every so many-th request is a short one; the same stream for both sides."""
    rest = options.rest
    count = 12 if options.quick else rest["requests"]
    every = round(1 / rest["short_share"])
    arrivals = shifted(poisson(rest["rate"], count, seed=number, first_steps=(0,)), number * count)
    return [
        replace(arrival, first_step=SHORT_FIRST_STEP, deadline_ms=rest["deadline_ms"])
        if index % every == every - 1
        else arrival
        for index, arrival in enumerate(arrivals)
    ]


async def run_rounds(options: Options) -> list[dict[str, Outcome]]:
    model = find_model(options.rest["model"]).path
    async with AsyncExitStack() as stack:
        workers = {name: await enter_worker(stack, options, model, flag) for name, flag in SIDES.items()}
        rounds = []
        for number in range(1 if options.quick else options.rest["rounds"]):
            names = list(workers) if number % 2 else list(reversed(workers))
            outcomes = {name: await drive(workers[name].ask, stream(options, number)) for name in names}
            for name, outcome in outcomes.items():
                print(f"round {number} {name} preemption: {outcome.images_per_s:.2f} images/s", failures(outcome))
            rounds.append(outcomes)
        return rounds


async def enter_worker(stack: AsyncExitStack, options: Options, model: Path, flag: str) -> Any:
    """The patience of both exceeds every deadline, so that age decides nothing here."""
    flags = [flag, "--max-batch", str(options.rest["max_batch"]), "--credits", "256"]
    address = stack.enter_context(worker_process(model, *flags, "--patience-s", "3600"))
    return await stack.enter_async_context(worker_under_load(address, (SHORT_FIRST_STEP,)))


def short(outcome: Outcome) -> list[Answer]:
    return [answer for answer in outcome.answers if answer.arrival.deadline_ms]


def figures_of(rounds: Sequence[dict[str, Outcome]]) -> list[Figure]:
    pooled = {name: [answer for one in rounds for answer in short(one[name])] for name in SIDES}
    quick, slow = (latency_quantile(pooled[name], 0.99) for name in ("with", "without"))
    pairs = [(answer.latency_s, other.latency_s) for answer, other in zip(*pooled.values(), strict=True)]
    finite = [[value if math.isfinite(value) else None for value in pair] for pair in pairs]
    ratio = quick / slow if math.isfinite(quick) else math.nan
    if math.isnan(ratio):
        raise RuntimeError("short requests failed with preemption: raise --deadline-ms or lower --rate")
    throughputs = [(one["with"].images_per_s, one["without"].images_per_s) for one in rounds]
    return [
        Figure("p99 of short requests, with / without preemption", ratio, at_most(0.5, "x"), finite, None),
        measured("images per second, with / without preemption", throughputs, ratio_of_sums, at_least(0.97, "x")),
        Figure("p99 of short requests with preemption", quick, informative("s"), [quick], None),
        Figure("p99 of short requests without", slow if math.isfinite(slow) else -1.0, informative("s"), [], None),
    ]


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
