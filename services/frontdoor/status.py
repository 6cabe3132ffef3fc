"""Report the dataplane's state to operators, to the controller and to /metrics."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pentimento.dataplane import Dataplane
from pentimento.dataplane.pools import Pool, Worker
from pentimento.domain.generation import PlanVersion
from pentimento.domain.requests import RequestState
from services.frontdoor.metrics import (
    DEFERRED,
    QUEUE,
    REFUSED_PLANS,
    REFUSING_WORKERS,
    REQUEST_SECONDS,
    RERUNS,
    RUNNING,
)
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.acceptance import Acceptance
from services.frontdoor.workers.worker_links import WorkerLinks

T = TypeVar("T")

_LEVELS_INTERVAL_S = 1.0


@dataclass
class PaintedCounts:
    """Count the images generated since the start, by kind of start and saved steps K, and the steps of all images."""

    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    steps_run: int = 0
    steps_saved: int = 0

    def count(self, kind: str, steps_run: int, steps_saved: int) -> None:
        """Add one image."""
        self.starts[kind, steps_saved] += 1
        self.steps_run += steps_run
        self.steps_saved += steps_saved


@dataclass(frozen=True)
class FrontdoorStatus:
    """Describe the frontdoor's state. `workers` are connected or were lost a short while ago. `latencies`: buckets of
    completed requests, each with its upper bound in seconds, ascending, and its count. `rejections`: rejected requests
    by reason. `blocked`: why no request is accepted now; "" if some are. `image_device_s`, `shadow_device_s`: device
    seconds of delivered images and of shadows since the start."""

    frontdoor_id: str
    frontdoor_epoch: int
    plan_version: PlanVersion
    pools: tuple[Pool, ...]
    queue_limit: int
    workers: tuple[Worker, ...]
    accepted: int
    completed: int
    failed: int
    cancelled: int
    rejections: Mapping[str, int]
    blocked: str
    rerun: int
    draining: bool
    latencies: tuple[tuple[float, int], ...]
    painted: PaintedCounts
    image_device_s: float
    shadow_device_s: float


def frontdoor_status(
    dataplane: Dataplane, frontdoor_id: str, painted: PaintedCounts, acceptance: Acceptance, shadows: Shadows
) -> FrontdoorStatus:
    """Return the present status of the frontdoor."""
    state = dataplane.state
    counters = state.counters
    return FrontdoorStatus(
        frontdoor_id=frontdoor_id,
        frontdoor_epoch=state.epoch,
        plan_version=state.index.version,
        pools=tuple(state.pools[name] for name in sorted(state.pools)),
        queue_limit=state.settings.queue_limit,
        workers=tuple(state.workers[worker_id] for worker_id in sorted(state.workers)),
        accepted=counters.accepted,
        completed=counters.completed,
        failed=counters.failed + counters.expired + counters.dropped,
        cancelled=counters.cancelled,
        rejections=dict(acceptance.rejections),
        blocked=acceptance.blocked,
        rerun=counters.rerun,
        draining=state.draining,
        latencies=completed_latencies(),
        painted=painted,
        image_device_s=shadows.image_device_s,
        shadow_device_s=shadows.shadow_device_s,
    )


def completed_latencies() -> tuple[tuple[float, int], ...]:
    """Return the latency buckets of completed requests: the upper bound in seconds and the count of each."""
    cumulative = [
        (float(sample.labels["le"]), int(sample.value))
        for metric in REQUEST_SECONDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket") and sample.labels["state"] == RequestState.COMPLETED.value
    ]
    before = (0, *(count for _, count in cumulative))
    return tuple((bound, count - less) for (bound, count), less in zip(cumulative, before, strict=False))


def publish_levels(dataplane: Dataplane) -> None:
    """Set the gauges of queues, reruns and refused plans for /metrics."""
    for pool in dataplane.state.pools.values():
        QUEUE.labels(pool.name).set(pool.waiting_count)
        RUNNING.labels(pool.name).set(pool.running_count)
        DEFERRED.labels(pool.name).set(pool.deferred_count)
    RERUNS.set(dataplane.state.counters.rerun)
    REFUSED_PLANS.set(dataplane.state.counters.refused_plans)


async def publish_levels_forever(dataplane: Dataplane, links: WorkerLinks) -> None:
    """Publish the gauges once a second, until cancelled."""
    while True:
        publish_levels(dataplane)
        REFUSING_WORKERS.set(len(links.refusals()))
        await asyncio.sleep(_LEVELS_INTERVAL_S)
