"""Find the highest load at which a server meets its latency target: streams at rising rates, until one misses it."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from benchmarks.worker_load import Answer, Ask, drive, failures, poisson, shifted

# factor between rates
STEP = 1.1
# for climbs that may be long
WIDE_STEP = 1.25
MOST_RUNS = 12
# Image numbers differ from run to run, and so do prompts and seeds: no cache helps a second time.
_FIRST_NUMBERS = count(0, 10_000)


@dataclass(frozen=True)
class Promise:
    """Require that 95 % of a run's answers come within `p95_s`."""

    p95_s: float

    def is_broken(self, answers: Sequence[Answer], request_count: int) -> bool:
        """Return whether the target is certainly missed, independent of the remaining answers."""
        late = sum(answer.latency_s > self.p95_s for answer in answers)
        return late > request_count - math.ceil(0.95 * request_count)


@dataclass(frozen=True)
class RateRun:
    """Store a stream at one rate, ended early once the target was missed, and its answers."""

    side: str
    phase: str
    seed: int
    rate_per_s: float
    request_count: int
    answered: int
    images_per_s: float
    p50_s: float
    p95_s: float
    failed: int
    held: bool

    def row(self) -> dict[str, Any]:
        return {name: None if value == math.inf else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class ClimbTrial:
    """Climb on one server, with the same number of images per run."""

    side: str
    ask: Ask
    promise: Promise
    request_count: int
    phase: str

    async def run(self, rate_per_s: float, seed: int) -> RateRun:
        arrivals = shifted(poisson(rate_per_s, self.request_count, seed), next(_FIRST_NUMBERS))
        outcome = await drive(self.ask, arrivals, lambda answers: self.promise.is_broken(answers, len(arrivals)))
        p95_s, failed = outcome.latency_s(0.95), sum(bool(answer.error) for answer in outcome.answers)
        held = not outcome.cut_short and not failed and p95_s <= self.promise.p95_s
        told = (len(outcome.answers), outcome.images_per_s, outcome.latency_s(0.5), p95_s, failed, held)
        print(
            f"{self.phase} {self.side}: {rate_per_s:.2f}/s p95 {p95_s:.2f} s {'holds' if held else 'breaks'}",
            flush=True,
        )
        for failure in failures(outcome):
            print(f"{self.side}: {failure}", flush=True)
        return RateRun(self.side, self.phase, seed, rate_per_s, self.request_count, *told)


async def climb_up(
    run_at: Callable[[float], Awaitable[RateRun]], rate_per_s: float, step: float = STEP
) -> list[RateRun]:
    """Climb until a rate misses the target."""
    runs = [await run_at(rate_per_s)]
    while runs[-1].held and len(runs) < MOST_RUNS:
        rate_per_s *= step
        runs.append(await run_at(rate_per_s))
    return runs


async def climb(run_at: Callable[[float], Awaitable[RateRun]], rate_per_s: float, step: float = STEP) -> list[RateRun]:
    """Climb from a rate that holds until one misses, or descend from one that misses until one holds."""
    runs = await climb_up(run_at, rate_per_s, step)
    while best(runs) is None and len(runs) < MOST_RUNS:
        rate_per_s /= step
        runs.append(await run_at(rate_per_s))
    return runs


def limit_of(runs: Sequence[RateRun]) -> RateRun:
    """Return the fastest run that held. Raises RuntimeError if the climb did not find both sides of it."""
    found = best(runs)
    if found is None or all(run.held for run in runs):
        raise RuntimeError(f"no limit was found: {[run.row() for run in runs]}")
    return found


def best(runs: Sequence[RateRun]) -> RateRun | None:
    """Return the fastest run that held, or None."""
    return max((run for run in runs if run.held), key=lambda run: run.images_per_s, default=None)
