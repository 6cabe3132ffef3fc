"""What the dataplane looks like from outside: for operators, for the controller, for /metrics."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pentimento.dataplane import Dataplane
from pentimento.dataplane.pools import Pool, Worker
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.fleet import (
    CONFIDENCE_BINS,
    MAX_TOLD_COUNT,
    AdapterDemand,
    PoolDemand,
    ReplicaReport,
    StartShare,
)
from pentimento.domain.generation import PlanVersion
from pentimento.domain.kept_quality import NOTHING_KEPT, KeptQuality, added_up
from pentimento.domain.requests import RequestState
from pentimento.domain.thinned_steps import NO_STEPS, ThinnableSteps
from pentimento.policies.serving.entry import NOISE
from services.frontdoor.metrics import (
    DEFERRED,
    QUEUE,
    REFUSED_PLANS,
    REFUSING_WORKERS,
    REQUEST_SECONDS,
    RERUNS,
    RUNNING,
)
from services.frontdoor.requests.acceptance import Acceptance
from services.frontdoor.workers.worker_links import WorkerLinks

T = TypeVar("T")

_LEVELS_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Totals:
    """Of a pool since the start; their differences are what a report tells."""

    arrived: int = 0
    completed: int = 0
    dropped: int = 0
    late: int = 0
    scored: int = 0
    deferred: int = 0
    stood_in: int = 0
    thinnable: ThinnableSteps = NO_STEPS
    confidences: tuple[int, ...] = ()

    def confidences_since(self, before: "Totals") -> tuple[int, ...]:
        """Return the scores by their parts of 0..1 beyond those of `before`."""
        told = before.confidences or (0,) * len(self.confidences)
        return tuple(count - less for count, less in zip(self.confidences, told, strict=True))


@dataclass(frozen=True, order=True)
class CountedStart:
    """A start as plans are told of it; see StartShare."""

    start_step: int = 0
    kind: str = NOISE
    step_count: int = 0
    model: str = ""

    @property
    def from_noise(self) -> "CountedStart":
        """The same request from noise."""
        return CountedStart(0, NOISE, self.step_count)


class StartCounts:
    """Where requests start, which adapters they ask for and what compared images kept of the heavy model's quality, by
    pool, until the controller is told."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[CountedStart]] = defaultdict(Counter)
        self._adapters: defaultdict[str, Counter[tuple[AdapterKind, str]]] = defaultdict(Counter)
        self._compared: dict[str, tuple[KeptQuality, ...]] = {}
        self._hits: dict[str, KeptQuality] = {}

    def count_compared(self, pool: str, confidence: float, kept: float) -> None:
        """Changes state: a light image with that confidence (0..1) kept that share of the heavy model's quality."""
        part = min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
        one = tuple(KeptQuality.of(kept) if number == part else NOTHING_KEPT for number in range(CONFIDENCE_BINS))
        self._compared[pool] = added_up((self._compared.get(pool, ()), one))

    def count_hit(self, pool: str, kept: float) -> None:
        """Changes state: an image that started from the cache kept that share of the heavy model's quality."""
        self._hits[pool] = self._hits.get(pool, NOTHING_KEPT) + KeptQuality.of(kept)

    def take_kept(self, pool: str) -> tuple[tuple[KeptQuality, ...], KeptQuality]:
        """Changes state: the light images and the hits that were compared since the last call."""
        return self._compared.pop(pool, ()), self._hits.pop(pool, NOTHING_KEPT)

    def count(self, pool: str, start: CountedStart, adapters: Iterable[tuple[AdapterKind, str]] = ()) -> None:
        """Changes state."""
        self._counts[pool][start] += 1
        self._adapters[pool].update(adapters)

    def correct(self, pool: str, start: CountedStart) -> None:
        """Changes state: one that was counted so was from noise after all."""
        self._counts[pool][start] -= 1
        self._counts[pool][start.from_noise] += 1

    def take(self, pool: str) -> tuple[StartShare, ...]:
        """Changes state: those since the last call, as many as a report may tell. What was corrected after it was told
        is taken off later ones."""
        return tuple(
            StartShare(start.start_step, count, start.kind, start.step_count, start.model)
            for start, count in sorted(_taken(self._counts, pool).items())
        )

    def take_adapters(self, pool: str) -> tuple[AdapterDemand, ...]:
        """Changes state: the adapters that were asked for since the last call, as many as a report may tell."""
        taken = _taken(self._adapters, pool)
        ordered = sorted(taken.items(), key=lambda item: (item[0][0].value, item[0][1]))
        return tuple(AdapterDemand(kind, name, count) for (kind, name), count in ordered)

    def put_back(self, demand: PoolDemand) -> None:
        """Changes state: the controller was not told of these after all."""
        pool = demand.pool or demand.model
        self._compared[pool] = added_up((self._compared.get(pool, ()), demand.compared))
        self._hits[pool] = self._hits.get(pool, NOTHING_KEPT) + demand.hits
        for one in demand.starts:
            counted = CountedStart(one.start_step, one.kind, one.step_count, one.model)
            self._counts[pool][counted] += one.request_count
        for adapter in demand.adapters:
            self._adapters[pool][adapter.kind, adapter.name] += adapter.request_count

    def forget(self) -> None:
        """Changes state: nothing that was counted so far is told."""
        self._counts.clear()
        self._adapters.clear()
        self._compared.clear()
        self._hits.clear()


def _taken(counts: defaultdict[str, Counter[T]], pool: str) -> dict[T, int]:
    """The pool's largest counts, taken out; what a controller would refuse beyond them, and what is owed, stays."""
    of_pool = counts.pop(pool, Counter[T]())
    taken = dict((+of_pool).most_common(MAX_TOLD_COUNT))
    if left := Counter({one: count for one, count in of_pool.items() if count and one not in taken}):
        counts[pool] = left
    return taken


@dataclass
class PaintedCounts:
    """Pictures that workers painted since the start, by kind of start and the steps K that it saved, and the steps of
    them all."""

    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    steps_run: int = 0
    steps_saved: int = 0

    def count(self, kind: str, steps_run: int, steps_saved: int) -> None:
        """Changes state."""
        self.starts[kind, steps_saved] += 1
        self.steps_run += steps_run
        self.steps_saved += steps_saved


class DemandReport:
    """What a frontdoor adds to its heartbeat. Each call tells what happened since the last one that was answered: a
    controller divides it by the time since it heard the frontdoor before. One that gets to a call only after it was
    given up does not count it."""

    def __init__(self, dataplane: Dataplane, starts: StartCounts) -> None:
        self._state = dataplane.state
        self._starts = starts
        self._answered: dict[str, Totals] = {}
        self._told: dict[str, Totals] = {}
        self._unanswered: tuple[PoolDemand, ...] = ()

    def answered(self) -> None:
        """Changes state: the controller has what the last call told."""
        self._answered, self._unanswered = self._told, ()

    def begin(self) -> None:
        """Changes state: the controller hears the frontdoor from now on, and what happened before is nobody's."""
        self._answered = {pool.name: _totals(pool) for pool in self._state.pools.values()}
        self._unanswered = ()
        self._starts.forget()

    def added_to(self, report: ReplicaReport) -> ReplicaReport:
        """Return the report with queue, counts, demand and plan. Changes state."""
        state = self._state
        pools = tuple(state.pools.values())
        models = state.index.models
        for one in self._unanswered:
            self._starts.put_back(one)
        self._told = {pool.name: _totals(pool) for pool in pools}
        self._unanswered = tuple(
            demand
            for pool in pools
            if _is_news(demand := self._demand(pool, models.get(pool.name, pool.name))) or pool.workers
        )
        return replace(
            report,
            queue_length=sum(pool.waiting_count for pool in pools),
            running_count=sum(pool.running_count for pool in pools),
            completed_count=state.counters.completed,
            failed_count=state.counters.failed + state.counters.expired + state.counters.dropped,
            demand=self._unanswered,
            plan_version=state.plan.version if state.plan is not None else None,
            draining=state.draining,
        )

    def _demand(self, pool: Pool, model: str) -> PoolDemand:
        before, now = self._answered.get(pool.name, Totals()), self._told[pool.name]
        scored = now.scored - before.scored
        compared, hits = self._starts.take_kept(pool.name)
        return PoolDemand(
            model=model,
            arrived_count=now.arrived - before.arrived,
            completed_count=now.completed - before.completed,
            dropped_count=now.dropped - before.dropped,
            late_count=now.late - before.late,
            queue_length=pool.waiting_count,
            starts=self._starts.take(pool.name),
            scored_count=scored,
            deferred_count=now.deferred - before.deferred,
            stood_in_count=now.stood_in - before.stood_in,
            pool=pool.name if pool.name != model else "",
            confidences=now.confidences_since(before) if scored else (),
            adapters=self._starts.take_adapters(pool.name),
            thinnable=now.thinnable.since(before.thinnable),
            compared=compared,
            hits=hits,
        )


def _is_news(demand: PoolDemand) -> bool:
    """Whether it tells of anything. Pools are never forgotten, those of models that are gone for good among them."""
    return demand != PoolDemand(demand.model, pool=demand.pool)


def _totals(pool: Pool) -> Totals:
    counts = (pool.arrived_count, pool.completed_count, pool.dropped_count, pool.late_count)
    scores = (pool.scored_count, pool.deferred_count, pool.stood_in_count)
    return Totals(*counts, *scores, pool.thinnable, tuple(pool.confidences))


@dataclass(frozen=True)
class FrontdoorStatus:
    """`workers` are those connected and those lost a short while ago. `latencies`: upper bounds in seconds, ascending,
    and how many completed requests took as long. `rejections`: rejected requests by reason; `blocked`: why none is
    accepted now, "" where some are."""

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


def frontdoor_status(
    dataplane: Dataplane, frontdoor_id: str, painted: PaintedCounts, acceptance: Acceptance
) -> FrontdoorStatus:
    """Return what the frontdoor tells of itself now."""
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
    )


def completed_latencies() -> tuple[tuple[float, int], ...]:
    """Return the upper bounds in seconds of the buckets that completed requests are counted in, and their numbers."""
    cumulative = [
        (float(sample.labels["le"]), int(sample.value))
        for metric in REQUEST_SECONDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket") and sample.labels["state"] == RequestState.COMPLETED.value
    ]
    before = (0, *(count for _, count in cumulative))
    return tuple((bound, count - less) for (bound, count), less in zip(cumulative, before, strict=False))


def publish_levels(dataplane: Dataplane) -> None:
    """Queue lengths and reruns as they are now, into the gauges of /metrics."""
    for pool in dataplane.state.pools.values():
        QUEUE.labels(pool.name).set(pool.waiting_count)
        RUNNING.labels(pool.name).set(pool.running_count)
        DEFERRED.labels(pool.name).set(pool.deferred_count)
    RERUNS.set(dataplane.state.counters.rerun)
    REFUSED_PLANS.set(dataplane.state.counters.refused_plans)


async def publish_levels_forever(dataplane: Dataplane, links: WorkerLinks) -> None:
    """Publish the gauges once a second, until it is cancelled."""
    while True:
        publish_levels(dataplane)
        REFUSING_WORKERS.set(len(links.refusals()))
        await asyncio.sleep(_LEVELS_INTERVAL_S)
