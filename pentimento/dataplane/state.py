"""Hold the state of the dataplane, and move requests in it. Only the handlers of this package change it."""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from pentimento.dataplane.events import AttemptKey, SpeedProfile
from pentimento.dataplane.fair_queue import FairQueue
from pentimento.dataplane.pools import Lane, Pool, Worker
from pentimento.dataplane.requests import ATTEMPTED, WAITING, LaneKey, Phase, Request
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.domain.fleet import Plan
from pentimento.domain.foresight import DEFAULT_THRESHOLD
from pentimento.policies.plan.entry import PlanIndex
from pentimento.policies.tenant_quota import QuotaMeter
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer

TOKENS_PER_EPOCH = 1 << 20

# Timers are swept when they exceed those of live requests by this number.
_TIMER_SLACK = 1024
_TIMERS_PER_REQUEST = 4


class TimerKind(IntEnum):
    """Name the purposes of timers."""

    DEADLINE = 0
    ORPHAN_WAIT = 1
    SUSPECT_WAIT = 2
    FORGET_WORKER = 3


@dataclass(slots=True)
class Counters:
    """Count events since the start of this frontdoor."""

    accepted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    dropped: int = 0
    rejected: int = 0
    rerun: int = 0
    fallen_back: int = 0
    thinned: int = 0
    refused_plans: int = 0


@dataclass(slots=True)
class State:
    """Hold the state of the dataplane. `epoch` is this frontdoor's and exceeds every earlier one, so its fencing tokens
    exceed theirs; 0 for a standby."""

    epoch: int
    settings: DataplaneSettings = field(default_factory=DataplaneSettings)
    requests: dict[str, Request] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    # Lanes with a new request or credit since the last dispatch; a dict, for its order.
    dirty: dict[LaneKey, None] = field(default_factory=dict)
    # Dirty lanes with weights that a worker stopped holding, or in a pool that got a worker with other weights.
    unheld: set[LaneKey] = field(default_factory=set)
    # The worker with the attempt's credit, and the worker with its pair's credit.
    attempt_workers: dict[AttemptKey, str] = field(default_factory=dict)
    peers: dict[AttemptKey, str] = field(default_factory=dict)
    # Attempts that the journal is writing.
    unpersisted: dict[AttemptKey, None] = field(default_factory=dict)
    # Recovered requests by the worker that may still be running them.
    orphans: dict[str, dict[str, None]] = field(default_factory=dict)
    timers: list[tuple[float, int, TimerKind, str]] = field(default_factory=list)
    timer_count: int = 0
    index: PlanIndex = field(default_factory=PlanIndex)
    # Thresholds of the plan, and of earlier plans' cascades that requests still use.
    thresholds: Mapping[str, Mapping[tuple[str, str], float]] = field(default_factory=dict)
    # The discriminator's own threshold of the last prediction: for requests without one.
    recommended_threshold: float = DEFAULT_THRESHOLD
    profiles: dict[str, SpeedProfile] = field(default_factory=dict)
    admission_share: float = 0.0
    # Use and weights of tenants with quotas; the unfinished requests of every tenant.
    meters: dict[str, QuotaMeter] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    tenant_counts: dict[str, int] = field(default_factory=dict)
    draining: bool = False
    drained: bool = False
    counters: Counters = field(default_factory=Counters)

    @property
    def plan(self) -> Plan | None:
        """Return the plan in force, None before the first."""
        return self.index.plan

    @property
    def first_token(self) -> int:
        """Return the first fencing token of this epoch, larger than those of earlier epochs."""
        return self.epoch * TOKENS_PER_EPOCH

    @property
    def drops_late(self) -> bool:
        """Return whether both operator and plan want predicted misses dropped."""
        return self.settings.drop_late and (self.plan is None or self.plan.drops_late)

    @property
    def thins(self) -> bool:
        """Return whether requests skip steps that they have no time for."""
        return self.settings.thinning is not ThinningMode.OFF

    @property
    def plan_thins(self) -> bool:
        """Return whether the plan in force relies on skipped steps."""
        return any(pool.thins for pool in self.pools.values())

    def pool(self, name: str) -> Pool:
        """Return the pool of that name; create it if it does not exist."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        return pool

    def lane(self, key: LaneKey) -> Lane:
        """Return the lane of that key; create it if it does not exist."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(fresh=FairQueue(self.weights), spare=FairQueue(self.weights))
        return lane

    def set_timer(self, at: float, kind: TimerKind, key: str) -> None:
        """Set a timer that fires at `at` for the request or worker `key`."""
        self.timer_count += 1
        heapq.heappush(self.timers, (at, self.timer_count, kind, key))
        if len(self.timers) > _TIMERS_PER_REQUEST * len(self.requests) + _TIMER_SLACK + len(self.workers):
            self.timers = [timer for timer in self.timers if self.is_set(timer)]
            heapq.heapify(self.timers)

    def is_set(self, timer: tuple[float, int, TimerKind, str]) -> bool:
        """Return whether the timer still has a purpose: its request or worker exists."""
        return timer[3] in (self.workers if timer[2] is TimerKind.FORGET_WORKER else self.requests)

    def add(self, request: Request) -> None:
        """Add a request in its first phase."""
        self.requests[request.request_id] = request
        self.tenant_counts[request.tenant] = self.tenant_counts.get(request.tenant, 0) + 1
        self._count(request, +1)
        self.set_timer(request.deadline, TimerKind.DEADLINE, request.request_id)

    def enter(self, request: Request, phase: Phase) -> None:
        """Move a request to another phase; leaving the queue takes it out of its lanes."""
        before = request.phase
        if before is Phase.QUEUED:
            self._leave_lanes(request)
        if (before in WAITING and phase in WAITING) or (before in ATTEMPTED and phase in ATTEMPTED):
            # The counts are the same in both phases.
            request.phase = phase
            return
        self._count(request, -1)
        request.phase = phase
        self._count(request, +1)

    def begin(self, request: Request, now: float, ends_at: float | None) -> None:
        """Count an attempt that starts, or has prepared its inputs. `ends_at` None: it holds no credit yet."""
        self._count(request, -1)
        if request.phase is Phase.QUEUED:
            self._leave_lanes(request)
            request.phase = Phase.STARTING
        request.started_at, request.ends_at = math.inf if ends_at is None else now, ends_at
        self._count(request, +1)

    def move(self, request: Request, pool: str, work: float, thinning: ThinningOffer = WHOLE) -> None:
        """Move the counts of a request, which is in no lane, to another pool."""
        self._count(request, -1)
        request.pool, request.work, request.thinning = pool, work, thinning
        self._count(request, +1)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended."""
        self._count(request, -1)
        if request.phase is Phase.QUEUED:
            self._leave_lanes(request)
        del self.requests[request.request_id]
        self.tenant_counts[request.tenant] -= 1
        if not self.tenant_counts[request.tenant]:
            del self.tenant_counts[request.tenant]

    def enqueue(self, request: Request, *, rerun: bool) -> None:
        """Queue a request in its lane by its deadline, or at the back of the lane's reruns."""
        self.enter(request, Phase.QUEUED)
        key = request.lane_key
        lane = self.lane(key)
        lane.note_inputs(request)
        self.dirty[key] = None
        if rerun:
            lane.reruns[request.request_id] = None
            return
        lane.fresh.push(request.request_id, request.tenant, request.deadline, request.work)
        for option in request.spare:
            key = (option.pool, option.model_digest)
            self.lane(key).note_inputs(request)
            self.lane(key).spare.push(request.request_id, request.tenant, request.deadline, option.work)
            self.dirty[key] = None

    def _leave_lanes(self, request: Request) -> None:
        self.lanes[request.lane_key].discard(request.request_id)
        for option in request.spare:
            self.lanes[option.pool, option.model_digest].discard(request.request_id)

    def _count(self, request: Request, step: int) -> None:
        if request.phase in WAITING:
            self.pool(request.pool).wait_for(request, step)
        elif request.phase in ATTEMPTED:
            self.pool(request.pool).run(request, step)
