"""Reject requests beyond the limits of tenants and disks, so that no tenant fills the disks."""

import asyncio
from collections.abc import Callable
from math import nan

from pentimento.domain.errors import ResourceExhausted
from pentimento.stores.ledger.journal.objects import JournalObjects
from services.frontdoor.metrics import FREE_BYTES
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.settings import QuotaLimits

QUOTA_RETRY_MS = 5000
_LOOK_INTERVAL_S = 0.5


class Quotas:
    """Check quotas. Raises ResourceExhausted, with a time to retry, before anything is journalled or stored."""

    def __init__(
        self, limits: QuotaLimits, jobs: Jobs, inputs: Inputs, keeper: ObjectKeeper, journal: JournalObjects
    ) -> None:
        self._limits = limits
        self._jobs = jobs
        self._inputs = inputs
        self._keeper = keeper
        self._journal = journal
        # Free bytes of the fullest disk; None if unknown.
        self._free_bytes: int | None = None

    def check(self, job: Job) -> None:
        """Check the quotas for a job that is already counted, with its inputs. Raises ResourceExhausted."""
        tenant, limits = job.request.tenant, self._limits
        count = self._jobs.count_of(tenant)
        if count > limits.tenant_unfinished_requests:
            limit = f"at most {limits.tenant_unfinished_requests} requests of a tenant may be unfinished"
            raise _exhausted("tenant-unfinished-requests", limit)
        if job.request.resolved.inputs and self._inputs.size_bytes(tenant) > limits.tenant_unfinished_bytes:
            limit = f"unfinished requests of a tenant may come with {limits.tenant_unfinished_bytes} bytes of images"
            raise _exhausted("tenant-unfinished-bytes", limit)
        if (full := self.full_disk) is not None:
            raise full
        self._keeper.check_room(tenant, len(self._jobs), count)

    @property
    def full_disk(self) -> ResourceExhausted | None:
        """Return the error of every request while a disk has too little space."""
        least = self._limits.min_free_bytes
        if self._free_bytes is None or self._free_bytes >= least:
            return None
        return _exhausted("min-free-bytes", f"less than {least} bytes are left on the disk")

    async def watch_disks_forever(self, see: Callable[[ResourceExhausted | None], None]) -> None:
        """Measure the free space on the disks of store and journal; `see` receives the error of too little, or None."""
        while True:
            await self.look_at_disks()
            see(self.full_disk)
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def look_at_disks(self) -> None:
        """Measure the free space once."""
        found = [await self._keeper.free_bytes(), await asyncio.to_thread(self._journal.free_bytes)]
        known = [free for free in found if free is not None]
        self._free_bytes = min(known) if known else None
        FREE_BYTES.set(nan if self._free_bytes is None else self._free_bytes)


def _exhausted(quota: str, limit: str) -> ResourceExhausted:
    message = f"{quota}: {limit}"
    return ResourceExhausted("QUOTA_EXCEEDED", message, retry_after_ms=QUOTA_RETRY_MS, metadata={"quota": quota})
