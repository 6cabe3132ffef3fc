"""What a worker killed under load costs: requests lost, requests committed twice, pictures changed. All must be none.

A real suite with several workers serves a steady load. Time and again one of the workers that run a request is killed
(SIGKILL) at a random moment of its denoising; the supervisor starts it again. Every accepted request must end in one
picture, the one that a run without faults paints for the same prompt and seed, byte by byte. The verdict comes from
what the clients received, from what the API answers afterwards, and from the rows of the journal. Workers paint one
picture at a time: a picture that shares steps with others is the same to 1e-4 of its latents, not to the byte.

A worker is killed only after it has served for longer than the supervisor's crash-loop limit, or it would be given up.
"""

import argparse
import asyncio
import itertools
import os
import random
import signal
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from benchmarks.report import (
    Figure,
    Options,
    Target,
    at_most,
    counted,
    informative,
    measured,
    parse_options,
    publish,
)
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, CacheMode, Completed, ImageRequest
from pentimento.frontdoor.v1.frontdoor_service_pb2 import WorkerView
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk.local import LocalSuite, local_suite
from pentimento.sdk.supervisor.restarts import RestartPolicy

STEPS = 20
# Long enough that nothing expires while workers start again on a busy machine: expiry is not what is measured.
DEADLINE_MS = 1_200_000
PICTURES = 8
ONE_AT_A_TIME = {"PENTIMENTO_UNET_WORKER_MAX_BATCH": "1"}
# The supervisor forgives an end after so long a service; a second more, because the two clocks differ.
LEAST_SERVED_S = RestartPolicy().stable_s + 1.0
POLL_S = 0.01


@dataclass
class Sample:
    """One request of the load and everything that became of it; `attempts` and `state` are the journal's."""

    key: str
    picture: int
    request_id: str = ""
    pictures: list[bytes] = field(default_factory=list)
    error: str = ""
    state: str = ""
    attempts: int = 0
    rows: int = 0
    equals_reference: bool = False
    stays_the_same: bool = False

    @property
    def accepted(self) -> bool:
        return bool(self.request_id)

    @property
    def lost(self) -> bool:
        return not self.pictures or self.state != "completed"

    @property
    def changed(self) -> bool:
        return not self.lost and not self.equals_reference

    @property
    def committed_twice(self) -> bool:
        return len(self.pictures) > 1 or self.rows > 1 or (not self.lost and not self.stays_the_same)


@dataclass(frozen=True)
class Kill:
    """`step` is the last that the worker had told of; `ejected_s` until the frontdoor no longer counted on it."""

    worker: str
    step: int
    step_count: int
    ejected_s: float


def main() -> int:
    options = parse_options("kill_one", __doc__, add_options)
    kills = 5 if options.quick else options.rest["kills"]
    flags = ["--workers", str(options.rest["workers"]), "--device", "cpu", "--threads", "1"]
    with local_suite(flags, environment=ONE_AT_A_TIME) as suite:
        trial = Trial(suite, random.Random(options.rest["seed"]))
        asyncio.run(trial.run(kills, options.rest["clients"]))
        read_journal(suite.state.path / "frontdoor.sqlite", trial.samples)
    return publish(options, figures_of(trial), notes=notes_of(options, trial))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=50, help="workers killed, one after the other")
    parser.add_argument("--workers", type=int, default=4, help="workers of the suite")
    parser.add_argument("--clients", type=int, default=5, help="clients that each keep one request under way")
    parser.add_argument("--seed", type=int, default=2, help="of the random moments")


def request_of(picture: int) -> ImageRequest:
    """Without the cache: what it holds differs from run to run, and with it where a picture starts."""
    prompt = f"a {('red', 'green', 'blue', 'yellow')[picture % 4]} {('circle', 'square')[picture % 2]}"
    steps, seed = STEPS, 100 + picture
    return ImageRequest(prompt, num_inference_steps=steps, seed=seed, cache=CacheMode.OFF, deadline_ms=DEADLINE_MS)


class Trial:
    """One suite under load and under fire."""

    def __init__(self, suite: LocalSuite, rng: random.Random) -> None:
        self._suite = suite
        self._rng = rng
        self._numbers = itertools.count()
        self._first_seen: dict[tuple[str, int], float] = {}
        self.reference: list[bytes] = []
        self.reference_s = 0.0
        self.samples: list[Sample] = []
        self.kills: list[Kill] = []

    async def run(self, kills: int, clients: int) -> None:
        async with open_channel(self._suite.endpoint.frontdoor, RpcChannelSettings()) as channel:
            images, operator = ImageClient(channel), FrontdoorClient(channel)
            await self._paint_reference(images)
            stop = asyncio.Event()
            load = [asyncio.create_task(self._keep_busy(images, stop)) for _ in range(clients)]
            while len(self.kills) < kills:
                self.kills.append(await self._kill_one(operator))
                print(f"kill {len(self.kills)} of {kills}: {self.kills[-1]}", flush=True)
            stop.set()
            await asyncio.gather(*load)
            for sample in self.samples:
                await self._ask_again(images, sample)

    async def _paint_reference(self, images: ImageClient) -> None:
        """The run without faults."""
        started = time.monotonic()
        for picture in range(PICTURES):
            sample = Sample(f"reference-{picture}", picture)
            await receive(images, sample)
            self.reference += sample.pictures
        self.reference_s = (time.monotonic() - started) / PICTURES
        if len(self.reference) != PICTURES:
            raise RuntimeError("the run without faults did not paint every picture")

    async def _keep_busy(self, images: ImageClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            number = next(self._numbers)
            sample = Sample(f"load-{number}", number % PICTURES)
            self.samples.append(sample)
            await receive(images, sample)
            sample.equals_reference = sample.pictures == [self.reference[sample.picture]]

    async def _kill_one(self, operator: FrontdoorClient) -> Kill:
        """Waits for a worker that may be killed, and for a random moment of an attempt of its."""
        while True:
            worker = await self._choose(operator)
            if worker is not None:
                async with open_channel(worker.address, RpcChannelSettings()) as channel:
                    kill = await self._kill_at_random(operator, worker, WorkerClient(channel))
                if kill is not None:
                    return kill
            await asyncio.sleep(POLL_S)

    async def _choose(self, operator: FrontdoorClient) -> WorkerView | None:
        """A random one of the busy workers that have served long enough, while another is there to take over."""
        now = time.monotonic()
        connected = [worker for worker in (await operator.status()).workers if worker.connected]
        served = {
            worker.worker_id: now - self._first_seen.setdefault((worker.worker_id, worker.worker_generation), now)
            for worker in connected
        }
        ripe = [worker for worker in connected if served[worker.worker_id] > LEAST_SERVED_S and worker.in_flight_count]
        return self._rng.choice(ripe) if ripe and len(connected) > 1 else None

    async def _kill_at_random(self, operator: FrontdoorClient, worker: WorkerView, client: WorkerClient) -> Kill | None:
        """None when the worker had nothing to do at the chosen moment."""
        await asyncio.sleep(self._rng.uniform(0.0, self.reference_s))
        running = [attempt for attempt in (await client.status()).attempts if attempt.step_count]
        if not running:
            return None
        os.kill(pid_of(self._suite, worker.address), signal.SIGKILL)
        killed_at = time.monotonic()
        while True:
            if not is_counted_on(worker, (await operator.status()).workers):
                break
            await asyncio.sleep(POLL_S)
        return Kill(worker.worker_id, running[0].step, running[0].step_count, time.monotonic() - killed_at)

    async def _ask_again(self, images: ImageClient, sample: Sample) -> None:
        """What the API answers for the request now must be what the client received then."""
        if not sample.accepted:
            return
        again = Sample(sample.key, sample.picture)
        await receive(images, again)
        sample.stays_the_same = (again.request_id, again.pictures) == (sample.request_id, sample.pictures)


async def receive(images: ImageClient, sample: Sample) -> None:
    """Everything that the stream of one request brings; no retries."""
    try:
        async for event in images.generate(request_of(sample.picture), sample.key):
            if isinstance(event, Accepted):
                sample.request_id = event.request_id
            elif isinstance(event, Completed):
                sample.pictures.append(event.image)
    except PentimentoError as error:
        sample.error = error.reason


def is_counted_on(victim: WorkerView, workers: Iterable[WorkerView]) -> bool:
    return any(
        worker.connected
        and (worker.worker_id, worker.worker_generation) == (victim.worker_id, victim.worker_generation)
        for worker in workers
    )


def pid_of(suite: LocalSuite, address: str) -> int:
    """The process that listens on that address, among the supervisor's."""
    for process in psutil.Process(suite.endpoint.supervisor_pid).children(recursive=True):
        if address in process.cmdline():
            return process.pid
    raise RuntimeError(f"no process of the suite listens on {address}")


def read_journal(path: Path, samples: list[Sample]) -> None:
    """State, rows and attempts of each accepted request."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
        states = dict(journal.execute("select request_id, state from journal_requests"))
        rows = dict(journal.execute("select idempotency_key, count(*) from journal_requests group by 1"))
        attempts = dict(journal.execute("select request_id, count(*) from journal_attempts group by 1"))
    for sample in samples:
        sample.state = states.get(sample.request_id, "missing")
        sample.rows = rows.get(sample.key, 0)
        sample.attempts = attempts.get(sample.request_id, 0)


def figures_of(trial: Trial) -> list[Figure]:
    """The samples of a count are its requests in order: 1 where it happened, 0 where not."""
    accepted = [sample for sample in trial.samples if sample.accepted]
    none = at_most(0, "requests")
    return [
        count_of("accepted requests lost", [sample.lost for sample in accepted], none),
        count_of("committed twice", [sample.committed_twice for sample in accepted], none),
        count_of("pictures unlike the run without faults", [sample.changed for sample in accepted], none),
        count_of("requests run again", [sample.attempts > 1 for sample in accepted], informative("requests")),
        measured(
            "from the kill to the worker's ejection, median",
            [kill.ejected_s for kill in trial.kills],
            statistics.median,
            informative("s"),
        ),
    ]


def count_of(name: str, happened: list[bool], target: Target) -> Figure:
    return counted(name, sum(happened), len(happened), target, [int(one) for one in happened])


def row_of(sample: Sample) -> str:
    """What the journal says, and what the client received, of one request."""
    same = "same" if sample.stays_the_same else "another"
    return (
        f"{sample.state}, attempts {sample.attempts}, rows {sample.rows}, received {len(sample.pictures)}, "
        f"asked again: {same}" + (f", error {sample.error}" if sample.error else "")
    )


def notes_of(options: Options, trial: Trial) -> dict[str, object]:
    return {
        "kills": [asdict(kill) for kill in trial.kills],
        "requests": dict(Counter(row_of(sample) for sample in trial.samples if sample.accepted)),
        "seed": options.rest["seed"],
        "workers": options.rest["workers"],
        "clients": options.rest["clients"],
        "steps": STEPS,
        "not_accepted": [sample.error for sample in trial.samples if not sample.accepted],
        "longest_ejection_s": max(kill.ejected_s for kill in trial.kills),
        "seconds_a_picture_without_faults": trial.reference_s,
    }


if __name__ == "__main__":
    raise SystemExit(main())
