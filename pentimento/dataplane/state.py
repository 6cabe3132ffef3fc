"""Everything the dataplane knows. Changed by the handlers of the modules beside this one."""

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from pentimento.dataplane.effects import PersistEnd
from pentimento.dataplane.events import AttemptKey, RouteOption, SpeedProfile
from pentimento.dataplane.fair_queue import FairQueue
from pentimento.dataplane.ready import ReadyWorkers
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.dataplane.speed import Speed
from pentimento.domain.fleet import CONFIDENCE_BINS, Plan
from pentimento.policies.adapter_needs import NO_HOLDINGS, NO_NEEDS, AdapterHoldings, AdapterNeeds
from pentimento.policies.serving.entry import NOISE
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer

LaneKey = tuple[str, str]
"""(pool, model digest): a route is pinned to a digest, so only workers that hold it may serve it."""


class Phase(Enum):
    """Where an admitted request is. The first three wait for a worker and count against the queue's bound."""

    ACCEPTING = "accepting"
    ROUTING = "routing"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SCORING = "scoring"
    COMMITTING = "committing"
    ENDING = "ending"
    ORPHANED = "orphaned"

    # Compared by identity anyway; Enum's own hash is a Python function that every set of phases would call.
    __hash__ = object.__hash__


TOKENS_PER_EPOCH = 1 << 20

WAITING = frozenset({Phase.ACCEPTING, Phase.ROUTING, Phase.QUEUED})
ATTEMPTED = frozenset({Phase.STARTING, Phase.RUNNING})

# Timers are swept when so many more than those of live requests are set.
_TIMER_SLACK = 1024
_TIMERS_PER_REQUEST = 4


class TimerKind(IntEnum):
    """What a timer is for."""

    DEADLINE = 0
    ORPHAN_WAIT = 1
    SUSPECT_WAIT = 2
    FORGET_WORKER = 3
    HEDGE = 4


@dataclass(slots=True)
class Request:
    """One admitted request. `losses` counts workers lost under it, `excluded` names them as (id, generation).

    `live`: tokens of its attempts that hold a credit, the newest last. `picture_token`: the attempt whose picture is
    scored or committed, 0 before; `fallback_token`: the one whose picture an earlier stage of the cascade leaves.
    `cascade_name` is the plan's, empty for the operator's own; `start` the kind of start of the stage that it is in.
    """

    request_id: str
    tenant: str
    pool: str
    work: float
    deadline: float
    arrived_at: float = 0.0
    slo_class: str = ""
    cascade: tuple[str, ...] = ()
    cascade_stage: int = 0
    cascade_name: str = ""
    start: str = NOISE
    needs: AdapterNeeds = NO_NEEDS
    phase: Phase = Phase.ACCEPTING
    model_digest: str = ""
    spare: tuple[RouteOption, ...] = ()
    option: int = 0
    pair: bool = False
    attempt_number: int = 0
    fencing_token: int = 0
    live: tuple[int, ...] = ()
    worker_id: str = ""
    started_at: float = 0.0
    started_load: int = 1
    # When its attempt is expected to give its credit back; None once it has.
    ends_at: float | None = None
    picture_token: int = 0
    fallback_token: int = 0
    degraded: str = ""
    # Which of its steps may be left out; what its newest attempt does of them, 0 for all its work.
    thinning: ThinningOffer = WHOLE
    thinned_steps: tuple[int, ...] = ()
    thinned_work: float = 0.0
    losses: int = 0
    excluded: frozenset[tuple[str, int]] = frozenset()
    suspect_until: float = 0.0
    # How it ends, once that is decided: what the journal is asked to write.
    ending: PersistEnd | None = None
    retry_after_ms: int = 0
    # How often the journalling of its end has broken down.
    end_failures: int = 0

    @property
    def attempt_key(self) -> AttemptKey:
        """The newest attempt: request id and fencing token."""
        return (self.request_id, self.fencing_token)

    @property
    def least_work(self) -> float:
        """Its work with as many steps left out as may be."""
        return self.work * self.thinning.least_share

    @property
    def attempt_work(self) -> float:
        """What its newest attempt has to do."""
        return self.thinned_work or self.work

    @property
    def lane_key(self) -> LaneKey:
        """The lane in which it waits: pool and model digest."""
        return (self.pool, self.model_digest)

    @property
    def has_next_stage(self) -> bool:
        """Whether a later stage of the cascade may follow."""
        return self.cascade_stage + 1 < len(self.cascade)


@dataclass(slots=True)
class Worker:
    """A worker as it last described itself. `abandoned`: attempts we gave up that it may still be running.

    Of those in flight, `begun` are the ones that it has started on, and `yielded` those that hold no credit any more,
    about to end. `lost_begun`: one of them was lost with this process, so those that only waited behind it are not to
    blame. `slowdown` as in `Speed`; None before its first picture.
    """

    worker_id: str
    model: str
    model_digest: str
    worker_generation: int
    credit_count: int
    reserve_count: int = 0
    draining: bool = False
    pinned: bool = False
    pairable: bool = False
    holdings: AdapterHoldings = NO_HOLDINGS
    connected: bool = True
    # False from a refusal until the worker's next word: what we believed of it was stale.
    confirmed: bool = True
    in_flight: dict[AttemptKey, None] = field(default_factory=dict)
    begun: dict[AttemptKey, None] = field(default_factory=dict)
    yielded: dict[AttemptKey, None] = field(default_factory=dict)
    lost_begun: bool = False
    abandoned: frozenset[AttemptKey] = frozenset()
    pools: tuple[str, ...] = ()
    lane_keys: tuple[LaneKey, ...] = ()
    slowdown: float | None = None
    # Of one that is lost.
    forget_at: float = 0.0
    # What it adds to its pools' credits and throughput: (pool, credits, work a second).
    counted: tuple[tuple[str, int, float], ...] = ()

    @property
    def used_credits(self) -> int:
        """The credits that are taken: those in flight and abandoned, less those about to end."""
        return len(self.in_flight) + len(self.abandoned) - len(self.yielded)

    def holds(self, model_digest: str) -> bool:
        """Return whether the worker is connected and holds that model."""
        return self.connected and self.model_digest == model_digest


@dataclass(slots=True)
class Lane:
    """Requests of one pool pinned to one digest, and the workers that could take them now. Reruns go first, then those
    `set_aside`: their turn has come, and no worker with a free credit had the LoRAs or ControlNets that they need;
    `spare` are other lanes' requests, which go last. `reserve`: workers without a credit that would take somebody more
    urgent than one that they have, the least urgent of theirs first."""

    reruns: OrderedDict[str, None] = field(default_factory=OrderedDict)
    set_aside: OrderedDict[str, None] = field(default_factory=OrderedDict)
    fresh: FairQueue = field(default_factory=FairQueue)
    spare: FairQueue = field(default_factory=FairQueue)
    ready: ReadyWorkers = field(default_factory=ReadyWorkers)
    reserve: ReadyWorkers = field(default_factory=ReadyWorkers)

    def discard(self, request_id: str) -> None:
        """Take a request out of all queues of the lane."""
        self.reruns.pop(request_id, None)
        self.set_aside.pop(request_id, None)
        self.fresh.discard(request_id)
        self.spare.discard(request_id)


@dataclass(slots=True)
class Backlog:
    """What of a tenant waits for a worker."""

    count: int = 0
    work: float = 0.0


@dataclass(slots=True)
class Pool:
    """Load of a pool, its counts since the start. `throughput`: work a second of its full workers, before
    `speed.slowdown`. `ends`: when those that run are expected to give their credits back, ascending.

    `arrived_count` has what cascades sent on to it, too.
    """

    name: str
    speed: Speed = field(default_factory=Speed)
    waiting_count: int = 0
    waiting_work: float = 0.0
    waiting_least_work: float = 0.0
    tenants: dict[str, Backlog] = field(default_factory=dict)
    running_count: int = 0
    ends: list[float] = field(default_factory=list)
    credit_count: int = 0
    throughput: float = 0.0
    arrived_count: int = 0
    completed_count: int = 0
    dropped_count: int = 0
    late_count: int = 0
    scored_count: int = 0
    deferred_count: int = 0
    confidences: list[int] = field(default_factory=lambda: [0] * CONFIDENCE_BINS)
    workers: dict[str, Worker] = field(default_factory=dict)

    def wait_for(self, request: Request, step: int) -> None:
        """Count a waiting request in (`step` 1) or out (-1)."""
        self.waiting_count += step
        self.waiting_work = self.waiting_work + step * request.work if self.waiting_count else 0.0
        least_work = self.waiting_least_work + step * request.least_work
        self.waiting_least_work = least_work if self.waiting_count else 0.0
        backlog = self.tenants.get(request.tenant)
        if backlog is None:
            backlog = self.tenants[request.tenant] = Backlog()
        backlog.count += step
        backlog.work += step * request.work
        if not backlog.count:
            del self.tenants[request.tenant]

    def run(self, request: Request, step: int) -> None:
        """Count a running request in (`step` 1) or out (-1)."""
        self.running_count += step
        if request.ends_at is None:
            return
        if step > 0:
            insort(self.ends, request.ends_at)
        else:
            del self.ends[bisect_left(self.ends, request.ends_at)]

    def expect_no_credit(self, request: Request) -> None:
        """Forget when a running request gives its credit back: it has."""
        if request.ends_at is not None:
            del self.ends[bisect_left(self.ends, request.ends_at)]
            request.ends_at = None


@dataclass(slots=True)
class Counters:
    """What happened since the start of this frontdoor."""

    accepted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    dropped: int = 0
    rejected: int = 0
    rerun: int = 0
    hedged: int = 0
    fallen_back: int = 0
    thinned: int = 0
    refused_plans: int = 0


@dataclass(slots=True)
class State:
    """Everything that the dataplane knows. `epoch` is this frontdoor's, larger than that of every one before: the
    tokens it mints are larger than theirs; 0 for a standby."""

    epoch: int
    settings: DataplaneSettings = field(default_factory=DataplaneSettings)
    requests: dict[str, Request] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    # Lanes where a request or a credit has come since the last dispatch; a dict, for its order.
    dirty: dict[LaneKey, None] = field(default_factory=dict)
    # Which worker's credit an attempt holds, and which worker's as its pair.
    attempt_workers: dict[AttemptKey, str] = field(default_factory=dict)
    peers: dict[AttemptKey, str] = field(default_factory=dict)
    # Attempts that the journal is writing.
    unpersisted: dict[AttemptKey, None] = field(default_factory=dict)
    # Recovered requests by the worker that may still be running them.
    orphans: dict[str, dict[str, None]] = field(default_factory=dict)
    timers: list[tuple[float, int, TimerKind, str]] = field(default_factory=list)
    timer_count: int = 0
    plan: Plan | None = None
    assigned: frozenset[str] = frozenset()
    # By the plan's cascade, then by pool and kind of start.
    thresholds: Mapping[str, Mapping[tuple[str, str], float]] = field(default_factory=dict)
    # Whom the plan lets a worker paint with; empty where it leaves that open.
    partners: Mapping[str, frozenset[str]] = field(default_factory=dict)
    profiles: dict[str, SpeedProfile] = field(default_factory=dict)
    admission_share: float = 0.0
    draining: bool = False
    drained: bool = False
    counters: Counters = field(default_factory=Counters)

    @property
    def first_token(self) -> int:
        """Fencing tokens of an epoch start above all those of the epochs before."""
        return self.epoch * TOKENS_PER_EPOCH

    @property
    def drops_late(self) -> bool:
        """Whether both operator and plan want predicted misses dropped."""
        return self.settings.drop_late and (self.plan is None or self.plan.drops_late)

    @property
    def thins(self) -> bool:
        """Whether steps are left out where there is no time for them."""
        return self.settings.thinning is not ThinningMode.OFF

    def pool(self, name: str) -> Pool:
        """Return the pool of that name, a new one where there is none."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        return pool

    def lane(self, key: LaneKey) -> Lane:
        """Return the lane of that key, a new one where there is none."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane()
        return lane

    def set_timer(self, at: float, kind: TimerKind, key: str) -> None:
        """Wake up at `at` for what `kind` and `key` name."""
        self.timer_count += 1
        heapq.heappush(self.timers, (at, self.timer_count, kind, key))
        if len(self.timers) > _TIMERS_PER_REQUEST * len(self.requests) + _TIMER_SLACK + len(self.workers):
            self.timers = [timer for timer in self.timers if self.is_set(timer)]
            heapq.heapify(self.timers)

    def is_set(self, timer: tuple[float, int, TimerKind, str]) -> bool:
        """Return whether anything waits for the timer: those of requests that are gone do nothing."""
        return timer[3] in (self.workers if timer[2] is TimerKind.FORGET_WORKER else self.requests)

    def add(self, request: Request) -> None:
        """Add a request in its first phase."""
        self.requests[request.request_id] = request
        self._count(request, +1)
        self.set_timer(request.deadline, TimerKind.DEADLINE, request.request_id)

    def enter(self, request: Request, phase: Phase) -> None:
        """Move a request to another phase; leaving the queue takes it out of its lanes."""
        self._count(request, -1)
        if request.phase is Phase.QUEUED:
            self._leave_lanes(request)
        request.phase = phase
        self._count(request, +1)

    def begin(self, request: Request, now: float, ends_at: float) -> None:
        """Count an attempt that starts: the first of a request that waits, or another one of one that is hedged."""
        self._count(request, -1)
        if request.phase is Phase.QUEUED:
            self._leave_lanes(request)
            request.phase = Phase.STARTING
        request.started_at, request.ends_at = now, ends_at
        self._count(request, +1)

    def move(self, request: Request, pool: str, work: float, thinning: ThinningOffer = WHOLE) -> None:
        """Count a request, which is in no lane, to another pool."""
        self._count(request, -1)
        request.pool, request.work, request.thinning = pool, work, thinning
        self._count(request, +1)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended."""
        self._count(request, -1)
        if request.phase is Phase.QUEUED:
            self._leave_lanes(request)
        del self.requests[request.request_id]

    def enqueue(self, request: Request, *, rerun: bool) -> None:
        """Queue a request in its lane, by when it is due, or at the back of the lane's reruns."""
        self.enter(request, Phase.QUEUED)
        key = request.lane_key
        lane = self.lane(key)
        self.dirty[key] = None
        if rerun:
            lane.reruns[request.request_id] = None
            return
        due = min(request.deadline, request.arrived_at + self._aging_limit_s(request.slo_class))
        lane.fresh.push(request.request_id, request.tenant, due, request.work)
        for option in request.spare:
            key = (option.pool, option.model_digest)
            self.lane(key).spare.push(request.request_id, request.tenant, due, option.work)
            self.dirty[key] = None

    def _aging_limit_s(self, slo_class: str) -> float:
        limits = self.settings.aging_limit_s
        seconds = limits.get(slo_class, limits.get("")) if limits else None
        return math.inf if seconds is None else seconds

    def _leave_lanes(self, request: Request) -> None:
        self.lanes[request.lane_key].discard(request.request_id)
        for option in request.spare:
            self.lanes[option.pool, option.model_digest].discard(request.request_id)

    def _count(self, request: Request, step: int) -> None:
        if request.phase in WAITING:
            self.pool(request.pool).wait_for(request, step)
        elif request.phase in ATTEMPTED:
            self.pool(request.pool).run(request, step)
