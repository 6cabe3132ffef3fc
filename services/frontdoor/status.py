"""Report the dataplane's state to operators, to the controller and to /metrics."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from pentimento.dataplane import Dataplane
from pentimento.domain.fleet import HeldModel
from pentimento.domain.image_request import ModelInfo
from pentimento.domain.jobs import RequestState
from services.frontdoor.metrics import (
    DEFERRED,
    QUEUE,
    REFUSED_PLANS,
    REFUSING_WORKERS,
    REQUEST_SECONDS,
    RERUNS,
    RUNNING,
)
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.worker_links import WorkerLinks

_LEVELS_INTERVAL_S = 1.0


@dataclass
class PaintedCounts:
    """Count the images generated since the start, by kind of start and saved steps K, and the steps of all images."""

    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    steps_run: int = 0
    steps_saved: int = 0

    def count(self, kind: str, steps_run: int, steps_saved: int) -> None:
        self.starts[kind, steps_saved] += 1
        self.steps_run += steps_run
        self.steps_saved += steps_saved


@dataclass(frozen=True)
class Offers:
    """List the models and adapters that requests may name."""

    dataplane: Dataplane
    catalogue: Catalogue
    adapters: AdapterCatalogue

    def models(self) -> tuple[ModelInfo, ...]:
        return self.catalogue.infos(self._ready_worker_count)

    def _ready_worker_count(self, held: HeldModel) -> int:
        workers = self.dataplane.state.workers.values()
        return sum(worker.holds(held.model_digest) and not worker.draining for worker in workers)


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


async def publish_levels_forever(dataplane: Dataplane, links: WorkerLinks) -> None:
    """Publish the gauges once a second, until cancelled."""
    while True:
        for pool in dataplane.state.pools.values():
            QUEUE.labels(pool.name).set(pool.waiting_count)
            RUNNING.labels(pool.name).set(pool.running_count)
            DEFERRED.labels(pool.name).set(pool.deferred_count)
        RERUNS.set(dataplane.state.counters.rerun)
        REFUSED_PLANS.set(dataplane.state.counters.refused_plans)
        REFUSING_WORKERS.set(len(links.refusals()))
        await asyncio.sleep(_LEVELS_INTERVAL_S)
