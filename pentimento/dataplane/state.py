"""Everything the dataplane knows. Changed by the handlers of the modules beside this one."""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from pentimento.dataplane.effects import End
from pentimento.dataplane.events import AttemptKey
from pentimento.dataplane.ready import ReadyWorkers
from pentimento.domain.fleet import Plan

LaneKey = tuple[str, str]
"""(pool, model digest): a route is pinned to a digest, so only workers that hold it may serve it."""


class Phase(Enum):
    """Where an admitted request is. The first three wait for a worker and count against the queue's bound."""

    ACCEPTING = "accepting"
    ROUTING = "routing"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    COMMITTING = "committing"
    ENDING = "ending"
    ORPHANED = "orphaned"


TOKENS_PER_EPOCH = 1 << 20

WAITING = frozenset({Phase.ACCEPTING, Phase.ROUTING, Phase.QUEUED})
ATTEMPTED = frozenset({Phase.STARTING, Phase.RUNNING})


class TimerKind(IntEnum):
    DEADLINE = 0
    ORPHAN_WAIT = 1
    SUSPECT_WAIT = 2
    FORGET_WORKER = 3


@dataclass(frozen=True)
class DataplaneSettings:
    """`queue_limit`: requests of a pool that wait for a worker; times in seconds.

    A request that took `suspect_losses` workers down with it waits up to `suspect_wait_s` for a second worker to be
    there, so that it cannot empty the pool. `orphan_wait_s`: how long a recovered attempt's worker may take to show up.
    """

    queue_limit: int = 256
    max_reruns: int = 2
    suspect_losses: int = 2
    suspect_wait_s: float = 10.0
    orphan_wait_s: float = 3.0
    forget_worker_s: float = 30.0
    min_retry_after_ms: int = 100
    max_retry_after_ms: int = 60_000


@dataclass(slots=True)
class Request:
    """One admitted request. `losses` counts workers lost under it, `excluded` names them as (id, generation)."""

    request_id: str
    tenant: str
    pool: str
    work: float
    deadline: float
    phase: Phase = Phase.ACCEPTING
    model_digest: str = ""
    attempt_number: int = 0
    fencing_token: int = 0
    worker_id: str = ""
    started_at: float = 0.0
    losses: int = 0
    excluded: frozenset[tuple[str, int]] = frozenset()
    suspect_until: float = 0.0
    end: End | None = None
    end_reason: str = ""
    end_message: str = ""

    @property
    def attempt_key(self) -> AttemptKey:
        return (self.request_id, self.fencing_token)


@dataclass(slots=True)
class Worker:
    """A worker as it last described itself. `abandoned`: attempts we gave up that it may still be running.

    `begun`: those in flight that it has started on. `lost_begun`: one of them was lost with this process, so those that
    only waited behind it are not to blame.
    """

    worker_id: str
    model: str
    model_digest: str
    worker_generation: int
    credit_count: int
    draining: bool = False
    pinned: bool = False
    connected: bool = True
    # False from a refusal until the worker's next word: what we believed of it was stale.
    confirmed: bool = True
    in_flight: dict[AttemptKey, None] = field(default_factory=dict)
    begun: dict[AttemptKey, None] = field(default_factory=dict)
    lost_begun: bool = False
    abandoned: frozenset[AttemptKey] = frozenset()
    pools: tuple[str, ...] = ()

    @property
    def used_credits(self) -> int:
        return len(self.in_flight) + len(self.abandoned)

    def holds(self, model_digest: str) -> bool:
        return self.connected and self.model_digest == model_digest


@dataclass(slots=True)
class Lane:
    """Requests of one pool pinned to one digest, and the workers that could take them now. Reruns go first."""

    reruns: OrderedDict[str, None] = field(default_factory=OrderedDict)
    fresh: OrderedDict[str, None] = field(default_factory=OrderedDict)
    ready: ReadyWorkers = field(default_factory=ReadyWorkers)


@dataclass(slots=True)
class Pool:
    """Load of a pool. `seconds_per_work` is a moving average over its attempts; None before the first."""

    name: str
    waiting_count: int = 0
    waiting_work: float = 0.0
    running_count: int = 0
    seconds_per_work: float | None = None
    arrived_count: int = 0
    completed_count: int = 0
    dropped_count: int = 0
    late_count: int = 0
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def credit_count(self) -> int:
        return sum(worker.credit_count for worker in self.workers.values() if not worker.draining)


@dataclass(slots=True)
class Counters:
    """Since the start of this frontdoor."""

    accepted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    rejected: int = 0
    rerun: int = 0


@dataclass(slots=True)
class State:
    """`epoch` is this frontdoor's, larger than that of every one before: the tokens it mints are larger than theirs."""

    epoch: int
    settings: DataplaneSettings = DataplaneSettings()
    requests: dict[str, Request] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    # Lanes where a request or a credit has come since the last dispatch; a dict, for its order.
    dirty: dict[LaneKey, None] = field(default_factory=dict)
    # Which worker's credit an attempt holds.
    attempt_workers: dict[AttemptKey, str] = field(default_factory=dict)
    # Attempts that the journal is writing.
    unpersisted: dict[AttemptKey, None] = field(default_factory=dict)
    # Recovered requests by the worker that may still be running them.
    orphans: dict[str, dict[str, None]] = field(default_factory=dict)
    timers: list[tuple[float, int, TimerKind, str]] = field(default_factory=list)
    timer_count: int = 0
    plan: Plan | None = None
    assigned: frozenset[str] = frozenset()
    admission_share: float = 0.0
    draining: bool = False
    drained: bool = False
    counters: Counters = field(default_factory=Counters)

    @property
    def first_token(self) -> int:
        """Fencing tokens of an epoch start above all those of the epochs before."""
        return self.epoch * TOKENS_PER_EPOCH

    def pool(self, name: str) -> Pool:
        if name not in self.pools:
            self.pools[name] = Pool(name)
        return self.pools[name]

    def lane(self, key: LaneKey) -> Lane:
        if key not in self.lanes:
            self.lanes[key] = Lane()
        return self.lanes[key]

    def set_timer(self, at: float, kind: TimerKind, key: str) -> None:
        self.timer_count += 1
        heapq.heappush(self.timers, (at, self.timer_count, kind, key))

    def add(self, request: Request) -> None:
        """Take in a request in its first phase."""
        self.requests[request.request_id] = request
        self._count(request, +1)
        self.set_timer(request.deadline, TimerKind.DEADLINE, request.request_id)

    def enter(self, request: Request, phase: Phase) -> None:
        """Move a request to another phase; leaving the queue takes it out of its lane."""
        self._count(request, -1)
        if request.phase is Phase.QUEUED:
            lane = self.lanes[request.pool, request.model_digest]
            lane.reruns.pop(request.request_id, None)
            lane.fresh.pop(request.request_id, None)
        request.phase = phase
        self._count(request, +1)

    def move(self, request: Request, pool: str, work: float) -> None:
        """Count a request, which is in no lane, to another pool."""
        self._count(request, -1)
        request.pool, request.work = pool, work
        self._count(request, +1)

    def remove(self, request: Request) -> None:
        self._count(request, -1)
        del self.requests[request.request_id]

    def enqueue(self, request: Request, *, rerun: bool) -> None:
        """To the back of its lane, or of the lane's reruns."""
        self.enter(request, Phase.QUEUED)
        key = (request.pool, request.model_digest)
        lane = self.lane(key)
        (lane.reruns if rerun else lane.fresh)[request.request_id] = None
        self.dirty[key] = None

    def _count(self, request: Request, step: int) -> None:
        pool = self.pool(request.pool)
        if request.phase in WAITING:
            pool.waiting_count += step
            pool.waiting_work += step * request.work
        elif request.phase in ATTEMPTED:
            pool.running_count += step
