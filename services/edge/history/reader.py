"""What the suite did before a page was opened: this process looks again and again, once for all pages, and keeps the
newest looks in memory."""

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

# Of all samples together, whatever their number: a fleet of many models has large ones.
MAX_HISTORY_BYTES = 4 << 20
LOOK_TIMEOUT_S = 2.0
# A page that has samples of so much later than the newest has them of a process before this one, whose clock was ahead;
# by less the clocks of several processes differ, among which a page's questions are shared out.
AHEAD_MS = 60_000


class SampleRing:
    """The newest samples, so many and so many bytes of JSON at most."""

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
        """Keep a sample, and let go of the oldest as far as there is no room. Where the clock went back its time is
        that of the one before and what has passed since: charts divide by what lies between two samples."""
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
        """Return the samples of later than that as a JSON array, oldest first; all of them where that is a time which
        this process has not seen yet."""
        if self._kept and at_ms > self._kept[-1][0] + AHEAD_MS:
            at_ms = 0
        return b"[%s]" % b",".join(encoded for at, encoded in self._kept if at > at_ms)


@dataclass
class HistoryReader:
    """Fills a ring. `frontdoor` and `controller` are channels that show this process's own token, the latter None where
    there is none; the token is used for nothing else."""

    ring: SampleRing
    interval_s: float
    frontdoor: grpc.aio.Channel
    controller: grpc.aio.Channel | None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    # Whether the last look was answered: where nobody may look by this process's token, pages look for themselves.
    reads: bool = False

    async def run(self) -> None:
        """Look until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self.interval_s)

    async def look(self) -> None:
        """Keep a sample of now; none where the frontdoor does not answer, or not this process."""
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
        """Close its channels."""
        for channel in (self.frontdoor, self.controller):
            if channel is not None:
                await channel.close()
