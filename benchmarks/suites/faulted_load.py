"""Load a suite during kills of its processes, and check the outcome of each request.

Each client keeps one request in flight. A request without the cache must return the image that a run without faults
gives for the same prompt and seed, byte by byte; with the cache, an image's start differs from run to run. The checks
compare the clients' answers, the API's later answers, and the journal, which counts every commit of a result.
"""

import asyncio
import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path

from lab.runs.measure import Figure, Target, at_most, counted, informative
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, CacheMode, Completed, ImageRequest
from pentimento.domain.reasons import Reason
from pentimento.domain.requests import RequestState
from pentimento.sdk import AsyncClient

# long enough that nothing expires while workers restart on a busy machine: expiry is not measured here
DEADLINE_MS = 1_200_000
IMAGE_COUNT = 8
STEPS = 20


@dataclass
class Sample:
    """Store one request of the load and its outcome; `state` and the fields after it are the journal's. `began_s` and
    `ended_s`: monotonic seconds of the call."""

    key: str
    image: int
    cached: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    request_id: str = ""
    images: list[bytes] = field(default_factory=list)
    error: str = ""
    state: str = ""
    attempts: int = 0
    rows: int = 0
    commits: int = 0
    equals_reference: bool = False
    stays_the_same: bool = False

    @property
    def accepted(self) -> bool:
        return bool(self.request_id)

    @property
    def left(self) -> bool:
        """Return whether the connection broke and the suite cancelled for it: one ending, reported, and no commit."""
        cancelled = self.state == RequestState.CANCELLED.value and self.error == Reason.CLIENT_LEFT
        return cancelled and not self.images and not self.commits

    @property
    def lost(self) -> bool:
        return not self.left and (not self.images or self.state != RequestState.COMPLETED.value)

    @property
    def changed(self) -> bool:
        return bool(self.images) and not self.cached and not self.equals_reference

    @property
    def committed_twice(self) -> bool:
        told_otherwise = bool(self.images) and not self.stays_the_same
        return self.commits > 1 or len(self.images) > 1 or self.rows > 1 or told_otherwise


def request_of(image: int, cached: bool) -> ImageRequest:
    """Return the same request for the same arguments, as a retry under one idempotency key needs."""
    prompt = f"a {('red', 'green', 'blue', 'yellow')[image % 4]} {('circle', 'square')[image % 2]}"
    cache, seed = (CacheMode.READ_WRITE if cached else CacheMode.OFF), 100 + image
    return ImageRequest(prompt, num_inference_steps=STEPS, seed=seed, cache=cache, deadline_ms=DEADLINE_MS)


class FaultedLoad:
    """Generate the load. Each `cached_every`-th request uses the cache, with 0 none; `make` builds requests."""

    def __init__(
        self, client: AsyncClient, cached_every: int = 0, make: Callable[[int, bool], ImageRequest] = request_of
    ) -> None:
        self._client = client
        self._make = make
        self._cached_every = cached_every
        self._numbers = itertools.count(1)
        self._reference: list[bytes] = []
        self.reference_s = 0.0
        self.samples: list[Sample] = []

    async def generate_reference(self) -> None:
        """Run without faults first. Raises RuntimeError unless it returns every image."""
        started = time.monotonic()
        for image in range(IMAGE_COUNT):
            sample = Sample(f"reference-{image}", image)
            await self._receive(sample)
            if not sample.images:
                raise RuntimeError(f"the run without faults did not return every image: {sample.error}")
            self._reference += sample.images
        self.reference_s = (time.monotonic() - started) / IMAGE_COUNT

    def start(self, clients: int, stop: asyncio.Event, pause_s: float = 0.0) -> list[asyncio.Task[None]]:
        """Start clients as tasks, which pause between requests; each ends with its last request once `stop` is set."""
        return [asyncio.create_task(self._keep_busy(stop, pause_s)) for _ in range(clients)]

    async def _keep_busy(self, stop: asyncio.Event, pause_s: float) -> None:
        while not stop.is_set():
            number = next(self._numbers)
            cached = self._cached_every > 0 and number % self._cached_every == 0
            await self._play(Sample(f"load-{number}", number % IMAGE_COUNT, cached))
            await asyncio.sleep(pause_s)

    async def _play(self, sample: Sample) -> None:
        self.samples.append(sample)
        sample.began_s = time.monotonic()
        await self._receive(sample)
        sample.ended_s = time.monotonic()
        sample.equals_reference = sample.images == [self._reference[sample.image]]

    async def _receive(self, sample: Sample) -> None:
        """Receive one request's stream, with the retries that the client was allowed."""
        request = self._make(sample.image, sample.cached)
        try:
            async with aclosing(self._client.stream(request, idempotency_key=sample.key)) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        sample.request_id = event.request_id
                    elif isinstance(event, Completed):
                        sample.images.append(event.image)
        except PentimentoError as error:
            sample.error = error.reason

    async def ask_again(self) -> None:
        """Require that the API now answers each request as the client was answered then."""
        for sample in self.samples:
            if sample.accepted:
                again = Sample(sample.key, sample.image, sample.cached)
                await self._receive(again)
                same = (again.request_id, again.images) == (sample.request_id, sample.images)
                sample.stays_the_same = same


def read_journal(path: Path, samples: list[Sample]) -> None:
    """Read each accepted request's state, rows, attempts and commits."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
        states = dict(journal.execute("select request_id, state from journal_requests"))
        rows = dict(journal.execute("select idempotency_key, count(*) from journal_requests group by 1"))
        attempts = dict(journal.execute("select request_id, count(*) from journal_attempts group by 1"))
    commits = commits_by_request(path)
    for sample in samples:
        sample.state = states.get(sample.request_id, "missing")
        sample.rows = rows.get(sample.key, 0)
        sample.attempts = attempts.get(sample.request_id, 0)
        sample.commits = commits[sample.request_id]


def request_figures(samples: list[Sample]) -> list[Figure]:
    """Return figures over the accepted requests."""
    accepted = [sample for sample in samples if sample.accepted]
    uncached = [sample for sample in accepted if not sample.cached]
    none = at_most(0, "requests")
    return [
        count_of("accepted requests lost", [sample.lost for sample in accepted], none),
        count_of("committed twice", [sample.committed_twice for sample in accepted], none),
        count_of("pictures unlike the run without faults", [sample.changed for sample in uncached], none),
        count_of("requests run again", [sample.attempts > 1 for sample in accepted], informative("requests")),
    ]


def count_of(name: str, happened: list[bool], target: Target) -> Figure:
    return counted(name, sum(happened), len(happened), target)


_TABLE = """CREATE TABLE IF NOT EXISTS benchmark_commits (
    request_id TEXT NOT NULL, fencing_token INTEGER NOT NULL, image_key TEXT, image_digest TEXT)"""
_TRIGGER = """CREATE TRIGGER IF NOT EXISTS benchmark_{name} AFTER {change} ON journal_requests
    WHEN NEW.state = 'completed'
    BEGIN
        INSERT INTO benchmark_commits VALUES (NEW.request_id, NEW.newest_token, NEW.image_key, NEW.image_digest);
    END"""
BUSY_S = 30.0


def count_commits(journal: Path) -> None:
    """Count every later commit of a result in this journal, across restarts of its frontdoor."""
    with closing(sqlite3.connect(journal, timeout=BUSY_S)) as connection, connection:
        connection.execute(_TABLE)
        connection.execute(_TRIGGER.format(name="updates", change="UPDATE OF state, image_digest"))
        connection.execute(_TRIGGER.format(name="inserts", change="INSERT"))


def commits_by_request(journal: Path) -> Counter[str]:
    """Return each request's number of commits. Raises sqlite3.OperationalError if nothing counts them."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=BUSY_S)) as connection:
        return Counter(dict(connection.execute("SELECT request_id, count(*) FROM benchmark_commits GROUP BY 1")))
