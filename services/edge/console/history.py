"""Sample the suite periodically for the charts of all pages; the newest samples stay in memory.

A sample has the suite's totals and the plan in force."""

import asyncio
import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.suite_status import SuiteStatus, gathered
from pentimento.domain.clock import boot_s
from pentimento.domain.fleet import Fleet, Plan

# The last hour.
MAX_SAMPLES = 720
INTERVAL_S = 5.0
# Limit for all samples together: a fleet with many models has large samples.
MAX_HISTORY_BYTES = 4 << 20
LOOK_TIMEOUT_S = 2.0
# A page with samples so much later than the newest one got them from an earlier process with a clock ahead. Smaller
# differences occur between the clocks of several processes behind one load balancer.
AHEAD_MS = 60_000
COUNTS = ("accepted", "completed", "failed", "rejected")
POOL_COUNTS = ("late", "scored", "deferred")


class SampleRing:
    """Store the newest samples, bounded by number and by bytes of JSON."""

    def __init__(
        self,
        max_samples: int = MAX_SAMPLES,
        max_bytes: int = MAX_HISTORY_BYTES,
        elapsed_s: Callable[[], float] = boot_s,
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

    `frontdoors`, by cell, and `controller` are channels with this process's token, which is used for nothing else;
    `controller` is None without one."""

    frontdoors: Mapping[str, grpc.aio.Channel]
    controller: grpc.aio.Channel | None
    ring: SampleRing = field(default_factory=SampleRing)
    # Whether the last sample succeeded. If this process's token may not read the status, pages sample for themselves.
    reads: bool = False

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Store a sample of the present status; none if the frontdoor does not answer or rejects this process."""
        sample = sample_of(await self._status())
        self.reads = sample is not None
        if sample is not None:
            self.ring.add(sample)

    async def _status(self) -> SuiteStatus:
        return await gathered(
            self._fleet(),
            {name: FrontdoorClient(one).status(LOOK_TIMEOUT_S) for name, one in self.frontdoors.items()},
            asyncio.sleep(0, None),
        )

    async def _fleet(self) -> Fleet | None:
        if self.controller is None:
            return None
        return await ControllerClient(self.controller).fleet(LOOK_TIMEOUT_S)

    async def close(self) -> None:
        for channel in (*self.frontdoors.values(), self.controller):
            if channel is not None:
                await channel.close()


def sample_of(status: SuiteStatus) -> dict[str, Any] | None:
    """Return a status as JSON values; None if the frontdoor did not answer.

    Totals since the start of the frontdoor process that `epoch` names: requests; `late`, `scored` and `deferred` images
    of all pools; steps `run` and `saved`; images by start and K; completed requests by latency in seconds. From the
    plan: workers by model, thresholds by stage, the admitted share, and the SLO in seconds (0 for none)."""
    frontdoor = status.frontdoor
    if frontdoor is None:
        return None
    return {
        "at": time.time_ns() // 1_000_000,
        "epoch": f"{frontdoor.frontdoor_id} {frontdoor.frontdoor_epoch}",
        **{name: getattr(frontdoor, f"{name}_count") for name in COUNTS},
        **{name: sum(getattr(pool, f"{name}_count") for pool in frontdoor.pools) for name in POOL_COUNTS},
        "run": frontdoor.steps_run,
        "saved": frontdoor.steps_saved,
        "starts": [[one.kind, one.saved_steps, one.image_count] for one in frontdoor.starts],
        "latencies": [
            [one.upper_bound_s if math.isfinite(one.upper_bound_s) else "Infinity", one.request_count]
            for one in frontdoor.latencies
        ],
        **plan_sample(status.fleet.plan if status.fleet is not None else None),
        "slo_s": status.fleet.slo_s if status.fleet is not None else 0.0,
    }


def plan_sample(plan: Plan | None) -> dict[str, Any]:
    """Return the plan's part of a sample; without a plan every request is admitted."""
    if plan is None:
        return {"workers": {}, "thresholds": {}, "admission": 1.0}
    thresholds = {}
    for cascade in plan.cascades:
        stages = [stage for stage in cascade.stages if stage.thresholds]
        for stage in stages:
            name = cascade.cascade if len(stages) == 1 else f"{cascade.cascade} {stage.pool}"
            thresholds[name] = max(one.confidence for one in stage.thresholds)
    workers = Counter(assignment.model for assignment in plan.assignments)
    return {"workers": dict(workers), "thresholds": thresholds, "admission": plan.admission_rate}
