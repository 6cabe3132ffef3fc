"""What the dataplane looks like from outside: for operators, for the controller, for /metrics."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from pentimento.dataplane import Dataplane
from pentimento.dataplane.state import Pool, Worker
from pentimento.domain.fleet import PlanAcknowledgement, PoolDemand, ReplicaReport, StartShare
from pentimento.domain.generation import PlanVersion
from services.frontdoor.metrics import DEFERRED, QUEUE, REFUSED_PLANS, REFUSING_WORKERS, RERUNS, RUNNING
from services.frontdoor.workers.worker_links import WorkerLinks

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


class StartCounts:
    """Where requests start, by pool, until the controller is told."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def count(self, pool: str, start_step: int) -> None:
        """Changes state."""
        self._counts[pool][start_step] += 1

    def correct(self, pool: str, start_step: int) -> None:
        """Changes state: one that was counted at that step was from noise after all."""
        self._counts[pool][start_step] -= 1
        self._counts[pool][0] += 1

    def take(self, pool: str) -> tuple[StartShare, ...]:
        """Changes state: those since the last call. What was corrected after it was told is taken off later ones."""
        counts = self._counts.pop(pool, Counter())
        owed = Counter({step: count for step, count in counts.items() if count < 0})
        if owed:
            self._counts[pool] = owed
        return tuple(StartShare(step, count) for step, count in sorted(counts.items()) if count > 0)


class DemandReport:
    """What a frontdoor adds to its heartbeat. Each call tells what happened since the one before."""

    def __init__(self, dataplane: Dataplane, starts: StartCounts) -> None:
        self._state = dataplane.state
        self._starts = starts
        self._reported: dict[str, Totals] = {}

    def added_to(self, report: ReplicaReport) -> ReplicaReport:
        """Return the report with queue, counts, demand and plan. Changes state."""
        state = self._state
        pools = tuple(state.pools.values())
        return replace(
            report,
            queue_length=sum(pool.waiting_count for pool in pools),
            running_count=sum(pool.running_count for pool in pools),
            completed_count=state.counters.completed,
            failed_count=state.counters.failed + state.counters.expired + state.counters.dropped,
            demand=tuple(self._demand(pool) for pool in pools),
            plan=PlanAcknowledgement(state.plan.version) if state.plan is not None else None,
            draining=state.draining,
        )

    def _demand(self, pool: Pool) -> PoolDemand:
        before = self._reported.get(pool.name, Totals())
        counts = (pool.arrived_count, pool.completed_count, pool.dropped_count, pool.late_count)
        now = Totals(*counts, pool.scored_count, pool.deferred_count)
        self._reported[pool.name] = now
        scored = now.scored - before.scored
        return PoolDemand(
            model=pool.name,
            arrived_count=now.arrived - before.arrived,
            completed_count=now.completed - before.completed,
            dropped_count=now.dropped - before.dropped,
            late_count=now.late - before.late,
            queue_length=pool.waiting_count,
            starts=self._starts.take(pool.name),
            deferred_share=(now.deferred - before.deferred) / max(scored, 1),
            scored_count=scored,
        )


@dataclass(frozen=True)
class FrontdoorStatus:
    """`workers` are those connected and those lost a short while ago."""

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
    rejected: int
    rerun: int
    draining: bool


def frontdoor_status(dataplane: Dataplane, frontdoor_id: str) -> FrontdoorStatus:
    state = dataplane.state
    counters = state.counters
    return FrontdoorStatus(
        frontdoor_id=frontdoor_id,
        frontdoor_epoch=state.epoch,
        plan_version=state.plan.version if state.plan is not None else PlanVersion(),
        pools=tuple(state.pools[name] for name in sorted(state.pools)),
        queue_limit=state.settings.queue_limit,
        workers=tuple(state.workers[worker_id] for worker_id in sorted(state.workers)),
        accepted=counters.accepted,
        completed=counters.completed,
        failed=counters.failed + counters.expired + counters.dropped,
        cancelled=counters.cancelled,
        rejected=counters.rejected,
        rerun=counters.rerun,
        draining=state.draining,
    )


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
