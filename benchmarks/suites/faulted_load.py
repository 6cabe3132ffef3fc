"""Load a suite during kills of its processes, and check the outcome of each request.

Each client keeps one request in flight. A request without the cache must return the image that a run without faults
gives for the same prompt and seed, byte by byte; with the cache, an image's start differs from run to run. The checks
compare the clients' answers, the API's later answers, and the journal, which counts every commit of a result. The
whole history must be linearisable (`lab.runs.request_history`).
"""

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field
from hashlib import sha256

from sqlalchemy import text

from benchmarks.suites.journal_events import commits_by_request, events_of, transaction
from lab.runs.histories import Operation
from lab.runs.measure import Figure, Target, at_most, counted, informative
from lab.runs.request_history import broken_keys
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, CacheMode, Completed, ImageRequest
from pentimento.domain.jobs import RequestState
from pentimento.domain.reasons import Reason
from pentimento.sdk import AsyncClient

# long enough that nothing expires while workers restart on a busy machine: expiry is not measured here
DEADLINE_MS = 1_200_000
IMAGE_COUNT = 8
STEPS = 20


@dataclass
class Sample:
    """Store one request of the load and its outcome; `state` and the fields after it are the journal's. `began_s` and
    `ended_s`: monotonic seconds of the call. `is_cancelled`: the client asked for it."""

    key: str
    image: int
    cached: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    is_cancelled: bool = False
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
        """Return whether the suite cancelled for a broken connection, or the client did: one ending, reported, and no
        commit."""
        is_reason = self.error == Reason.CLIENT_LEFT or (self.is_cancelled and bool(self.error))
        cancelled = self.state == RequestState.CANCELLED.value and is_reason
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
        # The clients' part of the history, by idempotency key.
        self.received: dict[str, list[Operation]] = defaultdict(list)
        self.broken: list[str] = []

    async def generate_reference(self) -> None:
        """Run without faults first. Raises RuntimeError unless it returns every image."""
        started = time.monotonic()
        for image in range(IMAGE_COUNT):
            sample = Sample(f"reference-{image}", image)
            await self._receive(sample)
            while sample.error == Reason.CLIENT_LEFT:
                # A busy machine broke the connection.
                sample = Sample(f"{sample.key}-again", image)
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
        called_s = time.time()
        try:
            async with aclosing(self._client.stream(request, idempotency_key=sample.key)) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        sample.request_id = event.request_id
                        self.note(sample.key, "accepted", event.request_id, called_s)
                    elif isinstance(event, Completed):
                        sample.images.append(event.image)
                        self.note(sample.key, "result", digest_of(event.image), called_s)
        except PentimentoError as error:
            sample.error = error.reason

    def note(self, key: str, name: str, value: Hashable, called_s: float) -> None:
        """Add an answer, received now, to the history."""
        self.received[key].append(Operation(name, value, called_s, time.time()))

    async def ask_again(self) -> None:
        """Require that the API now answers each request as the client was answered then."""
        for sample in self.samples:
            if sample.accepted:
                again = Sample(sample.key, sample.image, sample.cached)
                await self._receive(again)
                same = (again.request_id, again.images) == (sample.request_id, sample.images)
                sample.stays_the_same = same


def digest_of(image: bytes) -> str:
    """Return the name of an image's bytes in the journal."""
    return f"sha256:{sha256(image).hexdigest()}"


def read_journal(ledger_url: str, load: FaultedLoad) -> None:
    """Read each accepted request's state, rows, attempts and commits, and check the history."""
    with transaction(ledger_url) as journal:
        found = journal.execute(text("select request_id, state, idempotency_key from journal_requests")).all()
        attempts = Counter(journal.execute(text("select request_id from journal_attempts")).scalars())
    states = {request_id: state for request_id, state, _ in found}
    rows = Counter(key for _, _, key in found)
    commits = commits_by_request(ledger_url)
    for sample in load.samples:
        sample.state = states.get(sample.request_id, "missing")
        sample.rows = rows[sample.key]
        sample.attempts = attempts[sample.request_id]
        sample.commits = commits[sample.request_id]
    load.broken = broken_keys(*events_of(ledger_url), load.received)


def request_figures(load: FaultedLoad) -> list[Figure]:
    """Return figures over the accepted requests."""
    accepted = [sample for sample in load.samples if sample.accepted]
    uncached = [sample for sample in accepted if not sample.cached]
    none = at_most(0, "requests")
    return [
        count_of("accepted requests lost", [sample.lost for sample in accepted], none),
        count_of("committed twice", [sample.committed_twice for sample in accepted], none),
        count_of("pictures unlike the run without faults", [sample.changed for sample in uncached], none),
        counted("keys without a linearisable history", len(load.broken), len(load.received), none),
        count_of("requests run again", [sample.attempts > 1 for sample in accepted], informative("requests")),
    ]


def count_of(name: str, happened: list[bool], target: Target) -> Figure:
    return counted(name, sum(happened), len(happened), target)
