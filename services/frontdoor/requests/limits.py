"""Limit requests and open calls, and track whether new requests can be accepted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from math import nan
from weakref import WeakValueDictionary

from pentimento.domain.clock import Clock
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.stores.errors import StoreFull, StoreUnavailable
from pentimento.stores.ledger.journal.objects import JournalObjects
from services.frontdoor.metrics import FREE_BYTES, REQUESTS
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.settings import QuotaLimits
from services.frontdoor.tenants.usage import UsageMeter

QUOTA_RETRY_MS = 5000
_LOOK_INTERVAL_S = 0.5


@dataclass
class Quotas:
    """Check quotas. Raises ResourceExhausted, with a time to retry, before anything is journalled or stored."""

    limits: QuotaLimits
    jobs: Jobs
    inputs: Inputs
    keeper: ObjectKeeper
    journal: JournalObjects
    acceptance: "Acceptance"
    # Free bytes of the fullest disk; None if unknown.
    _free_bytes: int | None = field(default=None, init=False)

    def admit(self, jobs: Sequence[Job]) -> None:
        """Add and count new jobs of one tenant, unless one of its quotas or a disk is exhausted."""
        for job in jobs:
            self.jobs.add(job)
        try:
            for job in jobs:
                self.check(job)
        except PentimentoError as error:
            self.acceptance.reject(jobs[0].request.tenant, error.reason, len(jobs))
            for job in jobs:
                self.jobs.end(job)
            raise

    def check(self, job: Job) -> None:
        """Check the quotas for a job that is already counted, with its inputs. Raises ResourceExhausted."""
        tenant, limits = job.request.tenant, self.limits
        count = self.jobs.count_of(tenant)
        if count > limits.tenant_unfinished_requests:
            limit = f"at most {limits.tenant_unfinished_requests} requests of a tenant may be unfinished"
            raise _exhausted("tenant-unfinished-requests", limit)
        if job.request.resolved.inputs and self.inputs.size_bytes(tenant) > limits.tenant_input_bytes:
            limit = f"unfinished requests of a tenant may come with {limits.tenant_input_bytes} bytes of images"
            raise _exhausted("tenant-input-bytes", limit)
        if (full := self.full_disk) is not None:
            raise full
        self.keeper.check_room(tenant, len(self.jobs), count)

    @property
    def full_disk(self) -> ResourceExhausted | None:
        """Return the error of every request while a disk has too little space."""
        least = self.limits.min_free_bytes
        if self._free_bytes is None or self._free_bytes >= least:
            return None
        return _exhausted("min-free-bytes", f"less than {least} bytes are left on the disk")

    async def watch_disks_forever(self) -> None:
        while True:
            await self.look_at_disks()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def look_at_disks(self) -> None:
        """Measure the free space on the disks of store and journal, and report too little to the acceptance."""
        found = [await self.keeper.free_bytes(), await asyncio.to_thread(self.journal.free_bytes)]
        known = [free for free in found if free is not None]
        self._free_bytes = min(known) if known else None
        FREE_BYTES.set(nan if self._free_bytes is None else self._free_bytes)
        self.acceptance.see_disk(self.full_disk)


def _exhausted(quota: str, limit: str) -> ResourceExhausted:
    message = f"{quota}: {limit}"
    return ResourceExhausted("QUOTA_EXCEEDED", message, retry_after_ms=QUOTA_RETRY_MS, metadata={"quota": quota})


# Seconds after a failed write to the journal during which new requests count as blocked. The journal's lease may renew
# although a whole row cannot be written.
RETRY_S = 5.0


class Acceptance:
    """Count accepted and rejected requests, on one event loop. `blocked` is the reason why no request would be accepted
    now, "" if some would."""

    def __init__(self, usage: UsageMeter, clock: Clock) -> None:
        self.rejections: Counter[str] = Counter()
        self._usage = usage
        self._clock = clock
        self._disk: PentimentoError | None = None
        self._beat: PentimentoError | None = None
        self._journal: tuple[PentimentoError, float] | None = None

    @property
    def rejected_count(self) -> int:
        return self.rejections.total()

    def accept(self, tenant: str) -> None:
        REQUESTS.labels("accepted").inc()
        self._usage.accepted(tenant)

    def reject(self, tenant: str, reason: str, count: int = 1) -> None:
        self._count(reason, count)
        self._usage.refused(tenant, reason, count)

    def fail(self, error: PentimentoError) -> None:
        """Note that the journal could not be read or written for a request, and reject it."""
        self._count(error.reason, 1)
        if isinstance(error, StoreFull | StoreUnavailable):
            self._journal = error, self._clock.monotonic() + RETRY_S

    def journalled(self) -> None:
        """Note that the journal took a request."""
        self._journal = None

    def hear_beat(self, error: PentimentoError | None) -> None:
        self._beat = error

    def see_disk(self, error: PentimentoError | None) -> None:
        self._disk = error

    def _count(self, reason: str, count: int) -> None:
        REQUESTS.labels("rejected").inc(count)
        self.rejections[reason] += count

    @property
    def blocked(self) -> str:
        """Return the reason and its sentence, "" if requests can be accepted."""
        failed = self._journal[0] if self._journal is not None and self._clock.monotonic() < self._journal[1] else None
        error = self._disk or self._beat or failed
        return f"{error.reason}: {error.message}" if error is not None else ""


RETRY_MS = 1000
# Open calls with one idempotency key, or attached to one request.
MAX_OPEN_CALLS = 4


class Callers:
    """Count open calls by tenant and by the name they share: an idempotency key, or a request to attach to."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, str, str]] = Counter()

    @contextmanager
    def calling(self, tenant: str, named: str, field: str = "idempotency_key") -> Iterator[None]:
        """Count a call while it is open; changes state. Raises ResourceExhausted if too many calls with the same
        `named` in this field are open. Calls without a name are not limited."""
        if not named:
            yield
            return
        key = (tenant, field, named)
        if self._open[key] >= MAX_OPEN_CALLS:
            REQUESTS.labels("rejected").inc()
            message = f"{field}: at most {MAX_OPEN_CALLS} calls with the same one may be open at once"
            raise ResourceExhausted("TOO_MANY_LISTENERS", message, retry_after_ms=RETRY_MS)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


class HeldKeys:
    """Serialize the calls of a key, as several reads of the journal are needed to find its requests."""

    def __init__(self) -> None:
        # A lock lasts as long as calls hold it or wait for it.
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, tenant: str, idempotency_key: str) -> AsyncIterator[None]:
        """Hold the key during an arrival; changes state. Calls without a key do not wait."""
        if not idempotency_key:
            yield
            return
        async with self._locks.setdefault((tenant, idempotency_key), asyncio.Lock()):
            yield
