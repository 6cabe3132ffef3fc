"""The most load at which a server still keeps a promise: streams at rising rates, until one does not hold."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from benchmarks.worker_load import Answer, Ask, drive, failures, poisson, shifted

# From one rate to the next.
STEP = 1.1
# Where the way may be long.
WIDE_STEP = 1.25
MOST_RUNS = 12
# Numbers of pictures differ from run to run, hence prompts and seeds: no memo helps a second time.
_FIRST_NUMBERS = count(0, 10_000)


@dataclass(frozen=True)
class Promise:
    """95 % of a run's answers come within `p95_s`."""

    p95_s: float

    def is_broken(self, answers: Sequence[Answer], request_count: int) -> bool:
        """Surely, whatever may come of the rest."""
        late = sum(answer.latency_s > self.p95_s for answer in answers)
        return late > request_count - math.ceil(0.95 * request_count)


@dataclass(frozen=True)
class RateRun:
    """A stream at one rate, ended early once the promise was broken, and what came of it."""

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
    """Who is asked, and for how many pictures a run."""

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
    """Until a rate does not hold."""
    runs = [await run_at(rate_per_s)]
    while runs[-1].held and len(runs) < MOST_RUNS:
        rate_per_s *= step
        runs.append(await run_at(rate_per_s))
    return runs


async def climb(run_at: Callable[[float], Awaitable[RateRun]], rate_per_s: float, step: float = STEP) -> list[RateRun]:
    """Up from a rate that holds until one does not, or down from one that does not until one holds."""
    runs = await climb_up(run_at, rate_per_s, step)
    while best(runs) is None and len(runs) < MOST_RUNS:
        rate_per_s /= step
        runs.append(await run_at(rate_per_s))
    return runs


def limit_of(runs: Sequence[RateRun]) -> RateRun:
    """The fastest that held, of a climb that found both sides of it. Raises RuntimeError for any other."""
    found = best(runs)
    if found is None or all(run.held for run in runs):
        raise RuntimeError(f"no limit was found: {[run.row() for run in runs]}")
    return found


def best(runs: Sequence[RateRun]) -> RateRun | None:
    """The fastest that held, None when none did."""
    return max((run for run in runs if run.held), key=lambda run: run.images_per_s, default=None)
