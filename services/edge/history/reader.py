"""Sample the suite periodically for the charts of all pages; the newest samples stay in memory."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.suite_status import SuiteStatus, gathered
from pentimento.domain.clock import boot_s
from pentimento.domain.fleet import Fleet
from services.edge.history.samples import sample_of

# Of all samples together: those of a fleet with many models are large.
MAX_HISTORY_BYTES = 4 << 20
LOOK_TIMEOUT_S = 2.0
# A page with samples so much later than the newest one got them from an earlier process with a clock ahead. Smaller
# differences occur between the clocks of several processes behind one load balancer.
AHEAD_MS = 60_000


class SampleRing:
    """Store the newest samples, bounded by number and by bytes of JSON."""

    def __init__(
        self, max_samples: int, max_bytes: int = MAX_HISTORY_BYTES, elapsed_s: Callable[[], float] = boot_s
    ) -> None:
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._elapsed_s = elapsed_s
        self._added_s = 0.0
        self._kept: deque[tuple[int, bytes]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, sample: dict[str, Any]) -> None:
        """Store a sample and remove the oldest ones beyond the limits. If the clock went back, the sample's time is the
        previous one plus the elapsed time: charts divide by the time between two samples."""
        now_s = self._elapsed_s()
        passed_ms = max(round((now_s - self._added_s) * 1000), 1)
        at_ms = max(sample["at"], self._kept[-1][0] + passed_ms) if self._kept else sample["at"]
        self._added_s = now_s
        encoded = json.dumps({**sample, "at": at_ms}, separators=(",", ":")).encode()
        self._kept.append((at_ms, encoded))
        self.size_bytes += len(encoded)
        while self._kept and (len(self._kept) > self._max_samples or self.size_bytes > self._max_bytes):
            self.size_bytes -= len(self._kept.popleft()[1])

    def after(self, at_ms: int) -> bytes:
        """Return the samples after a time as a JSON array, oldest first; all samples if that time is in this
        process's future."""
        if self._kept and at_ms > self._kept[-1][0] + AHEAD_MS:
            at_ms = 0
        return b"[%s]" % b",".join(encoded for at, encoded in self._kept if at > at_ms)


@dataclass
class HistoryReader:
    """Fill a ring with samples.

    `frontdoor` and `controller` are channels with this process's token, which is used for nothing else; `controller` is
    None without one."""

    ring: SampleRing
    interval_s: float
    frontdoor: grpc.aio.Channel
    controller: grpc.aio.Channel | None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    # Whether the last sample succeeded. If this process's token may not read the status, pages sample for themselves.
    reads: bool = False

    async def run(self) -> None:
        """Sample until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self.interval_s)

    async def look(self) -> None:
        """Store a sample of the present status; none if the frontdoor does not answer or rejects this process."""
        sample = sample_of(await self._status(), self.now_ms())
        self.reads = sample is not None
        if sample is not None:
            self.ring.add(sample)

    async def _status(self) -> SuiteStatus:
        return await gathered(
            self._fleet(),
            FrontdoorClient(self.frontdoor).status(LOOK_TIMEOUT_S),
            asyncio.sleep(0, None),
        )

    async def _fleet(self) -> Fleet | None:
        if self.controller is None:
            return None
        return await ControllerClient(self.controller).fleet(LOOK_TIMEOUT_S)

    async def close(self) -> None:
        """Close the channels."""
        for channel in (self.frontdoor, self.controller):
            if channel is not None:
                await channel.close()
