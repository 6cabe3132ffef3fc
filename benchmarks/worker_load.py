"""Load one image server with requests in a Poisson stream, and time each.

Arrivals are open-loop, with the remaining steps that caches leave: from the start, or from one of the captured latents.
The same seed gives the same stream to any server.
"""

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count

from lab.fixtures.worker_process import START_S
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import Unavailable
from pentimento.domain.execution import AttemptResult
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import (
    Attempt,
    CacheGrant,
    Donor,
    FromLatent,
    FromNoise,
    GenerationSpec,
    LatentSlot,
    Route,
    Scheduler,
    Start,
)
from pentimento.rpc import RpcChannelSettings, open_channel

STEPS = 50
# starts that NIRVANA's caches give (NIRVANA, section 5.3); 0 is an image from noise
FIRST_STEPS = (0, 5, 10, 15, 20, 25)


@dataclass(frozen=True)
class WorkerArrival:
    """Store a request: seconds after the stream's start, its first step, and its deadline, 0 for none."""

    number: int
    at_s: float
    first_step: int
    deadline_ms: int = 0

    @property
    def prompt(self) -> str:
        return f"a red circle above a blue square, number {self.number}"


@dataclass(frozen=True)
class Answer:
    """Store an answer; `latency_s` runs from the due time and is infinite on failure."""

    arrival: WorkerArrival
    latency_s: float
    finished_at: float
    error: str = ""


@dataclass(frozen=True)
class StreamOutcome:
    """Hold one stream's answers in arrival order; images per second run from the stream's start to the last answer."""

    answers: tuple[Answer, ...]
    seconds: float
    cut_short: bool = False

    @property
    def images_per_s(self) -> float:
        return sum(not answer.error for answer in self.answers) / self.seconds

    def latency_s(self, share: float) -> float:
        return latency_quantile(self.answers, share)


Ask = Callable[[WorkerArrival], Awaitable[None]]


def never(answers: Sequence[Answer]) -> bool:
    return False


def latency_quantile(answers: Sequence[Answer], share: float) -> float:
    """Return the nearest-rank quantile; infinite if it falls among the failures."""
    ordered = sorted(answer.latency_s for answer in answers)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def poisson(rate_per_s: float, count: int, seed: int, first_steps: Sequence[int] = FIRST_STEPS) -> list[WorkerArrival]:
    """Return a stream; `first_steps` are equally likely."""
    generator = random.Random(seed)
    at_s, arrivals = 0.0, []
    for number in range(count):
        at_s += generator.expovariate(rate_per_s)
        arrivals.append(WorkerArrival(number, at_s, generator.choice(first_steps)))
    return arrivals


async def drive(
    ask: Ask, arrivals: Sequence[WorkerArrival], give_up: Callable[[Sequence[Answer]], bool] = never
) -> StreamOutcome:
    """Send each request at its time, and wait for all; an exception of `ask` is that request's failure.

    Once `give_up` accepts the answers so far, nothing more is sent, and the outcome is partial.
    """
    began = time.monotonic()
    answers: list[Answer] = []

    async def one(arrival: WorkerArrival) -> None:
        due = began + arrival.at_s
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        if give_up(answers):
            return
        try:
            await ask(arrival)
        except Exception as error:
            answers.append(Answer(arrival, math.inf, time.monotonic(), f"{type(error).__name__}: {error}"[:200]))
        else:
            answers.append(Answer(arrival, time.monotonic() - due, time.monotonic()))

    await asyncio.gather(*(one(arrival) for arrival in arrivals))
    seconds = max(answer.finished_at for answer in answers) - began
    answers.sort(key=lambda answer: answer.arrival.number)
    return StreamOutcome(tuple(answers), seconds, cut_short=len(answers) < len(arrivals))


async def single_image_s(ask: Ask, count: int = 15) -> float:
    """Return the median seconds of images from noise, one after the other."""
    seconds = []
    for number in range(count):
        began = time.monotonic()
        await ask(WorkerArrival(-1 - number, 0.0, 0))
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


class WorkerUnderLoad:
    """Call a running worker as a frontdoor would. `donors` holds its latents by first step."""

    def __init__(self, client: WorkerClient, held: HeldModel) -> None:
        self._client = client
        self.held = held
        self._attempts = 0
        self.donors: dict[int, FromLatent] = {}

    async def capture_donors(self, first_steps: Sequence[int]) -> None:
        """Generate one image under a grant, so that others can start from its latents."""
        steps = [step for step in first_steps if step]
        slots = tuple(LatentSlot(step, f"latents/{step}") for step in steps)
        result = await self._generate(self._spec(0, "a donor"), FromNoise(), 0, CacheGrant("grant", slots, "", 60_000))
        for latent in result.captured.latents:
            donor = Donor(f"entry-{latent.resume_step}", latent.object.digest, 1.0)
            self.donors[latent.resume_step] = FromLatent(latent.object, latent.resume_step, STEPS, latent.sigma, donor)
        if set(self.donors) != set(steps):
            raise RuntimeError(f"captured {sorted(self.donors)}, wanted {steps}")

    async def ask(self, arrival: WorkerArrival) -> None:
        """Send a request. Raises the worker's error, or if a donor was not used."""
        start: Start = self.donors[arrival.first_step] if arrival.first_step else FromNoise()
        result = await self._generate(self._spec(abs(arrival.number), arrival.prompt), start, arrival.deadline_ms)
        if result.steps_run != STEPS - arrival.first_step:
            raise RuntimeError(f"{result.steps_run} steps were run: {result.notes}")

    async def _generate(
        self, spec: GenerationSpec, start: Start, deadline_ms: int, grant: CacheGrant | None = None
    ) -> AttemptResult:
        self._attempts += 1
        attempt = Attempt(f"load-{self._attempts}", 1, self._attempts, "load", 1, "load")
        route = Route("load", start, self.held.model, self.held.model_digest)
        generation = self.held.worker_generation
        last = None
        async for event in self._client.execute(
            attempt, spec, route, generation, deadline_remaining_ms=deadline_ms, cache_grant=grant
        ):
            last = event
        if not isinstance(last, AttemptResult):
            raise RuntimeError("the worker's stream ended without a result")
        return last

    def _spec(self, seed: int, prompt: str) -> GenerationSpec:
        held = self.held
        return GenerationSpec(
            prompt=prompt,
            negative_prompt="",
            model=held.model,
            width_px=held.default_width_px,
            height_px=held.default_height_px,
            num_inference_steps=STEPS,
            guidance_scale=3.0,
            scheduler=Scheduler(held.schedulers[0]),
            seed=seed,
        )


@asynccontextmanager
async def worker_under_load(address: str, first_steps: Sequence[int] = FIRST_STEPS) -> AsyncIterator[WorkerUnderLoad]:
    """Wait until the worker serves, and give it its donors."""
    async with open_channel(address, RpcChannelSettings()) as channel:
        client = WorkerClient(channel)
        worker = WorkerUnderLoad(client, await _held_by(client))
        await worker.capture_donors(first_steps)
        yield worker


async def _held_by(client: WorkerClient) -> HeldModel:
    async with asyncio.timeout(START_S):
        while True:
            try:
                return (await anext(client.watch_credits("load", 1))).held
            except Unavailable:
                await asyncio.sleep(0.2)


def shifted(arrivals: Sequence[WorkerArrival], number: int) -> list[WorkerArrival]:
    """Return the same stream with other numbers, and so other prompts and seeds: no cache helps a second time."""
    return [replace(arrival, number=arrival.number + number) for arrival in arrivals]


def failures(outcome: StreamOutcome) -> list[str]:
    return sorted({answer.error for answer in outcome.answers if answer.error})


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
    p95_s: float
    failed: int
    held: bool


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
        told = (len(outcome.answers), outcome.images_per_s, p95_s, failed, held)
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
        raise RuntimeError(f"no limit was found: {runs}")
    return found


def best(runs: Sequence[RateRun]) -> RateRun | None:
    """Return the fastest run that held, or None."""
    return max((run for run in runs if run.held), key=lambda run: run.images_per_s, default=None)
