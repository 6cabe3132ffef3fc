"""Hold workers, lanes of one model each, and pools with their load and counts."""

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field

from pentimento.dataplane.events import AttemptKey
from pentimento.dataplane.fair_queue import FairQueue
from pentimento.dataplane.ready import ReadyWorkers
from pentimento.dataplane.requests import LaneKey, Request
from pentimento.dataplane.speed import Speed
from pentimento.domain.fleet import CONFIDENCE_BINS
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.policies.adapter_needs import NO_HOLDINGS, AdapterHoldings


@dataclass(slots=True)
class Worker:
    """Describe a worker by its last report. `abandoned`: attempts that the dataplane abandoned and the worker may still
    run.

    Among the attempts in flight, `preparing` hold no credit yet: the worker fetches and decodes their inputs, at most
    `preparing_count` at the same time, while others run. The worker has started those in `begun`; those in `yielded`
    are about to end and hold no credit any longer. `lost_begun`: a begun attempt was lost with this process, so
    attempts that only waited after it are not to blame. `slowdown` as in `Speed`; None before its first image.
    """

    worker_id: str
    model: str
    model_digest: str
    worker_generation: int
    credit_count: int
    reserve_count: int = 0
    preparing_count: int = 0
    draining: bool = False
    pinned: bool = False
    pairable: bool = False
    holdings: AdapterHoldings = NO_HOLDINGS
    connected: bool = True
    # False from a refusal until the worker's next report: the recorded state was stale.
    confirmed: bool = True
    in_flight: dict[AttemptKey, None] = field(default_factory=dict)
    preparing: dict[AttemptKey, None] = field(default_factory=dict)
    begun: dict[AttemptKey, None] = field(default_factory=dict)
    yielded: dict[AttemptKey, None] = field(default_factory=dict)
    lost_begun: bool = False
    abandoned: frozenset[AttemptKey] = frozenset()
    pools: tuple[str, ...] = ()
    lane_keys: tuple[LaneKey, ...] = ()
    slowdown: float | None = None
    # Set once the worker is lost.
    forget_at: float = 0.0
    # Its contribution to its pools' credits and throughput: (pool, credits, work a second).
    counted: tuple[tuple[str, int, float], ...] = ()

    @property
    def painting_count(self) -> int:
        """Return the number of attempts at its device, with those about to end."""
        return len(self.in_flight) + len(self.abandoned) - len(self.preparing)

    @property
    def used_credits(self) -> int:
        """Return the number of credits in use: attempts at its device, except those about to end."""
        return self.painting_count - len(self.yielded)

    def holds(self, model_digest: str) -> bool:
        """Return whether the worker is connected and holds that model."""
        return self.connected and self.model_digest == model_digest


@dataclass(slots=True)
class Lane:
    """Hold the requests of one pool that are pinned to one digest, and the workers with room. Reruns go first, then
    `set_aside` requests: they had their turn, but no worker with a free credit had their LoRAs or ControlNets. `spare`
    requests, of other lanes, go last. `preparers`: workers that would take a request with inputs. `reserve`: workers
    without a free credit that would take a more urgent request than one that they run, latest deadline first. `inputs`:
    the lane's requests with inputs."""

    reruns: OrderedDict[str, None] = field(default_factory=OrderedDict)
    set_aside: OrderedDict[str, None] = field(default_factory=OrderedDict)
    fresh: FairQueue = field(default_factory=FairQueue)
    spare: FairQueue = field(default_factory=FairQueue)
    ready: ReadyWorkers = field(default_factory=ReadyWorkers)
    preparers: ReadyWorkers = field(default_factory=ReadyWorkers)
    reserve: ReadyWorkers = field(default_factory=ReadyWorkers)
    inputs: dict[str, None] = field(default_factory=dict)

    def takers(self, request: Request) -> ReadyWorkers:
        """Return the workers that have room for such a request now."""
        return self.preparers if request.has_inputs else self.ready

    def withdraw(self, worker_id: str) -> None:
        """Stop offering the worker."""
        for workers in (self.ready, self.preparers, self.reserve):
            workers.discard(worker_id)

    def note_inputs(self, request: Request) -> None:
        """Remember a request that is about to wait here, if it has inputs."""
        if request.has_inputs:
            self.inputs[request.request_id] = None

    def discard(self, request_id: str) -> None:
        """Remove a request from all queues of the lane."""
        self.reruns.pop(request_id, None)
        self.set_aside.pop(request_id, None)
        self.fresh.discard(request_id)
        self.spare.discard(request_id)
        self.inputs.pop(request_id, None)


@dataclass(slots=True)
class Backlog:
    """Count the requests and the work of a tenant that wait for a worker."""

    count: int = 0
    work: float = 0.0


@dataclass(slots=True)
class Pool:
    """Hold the load of a pool and its counts since the start. `throughput`: work a second of its full workers, before
    `speed.slowdown`. `ends`: when its running requests are expected to free their credits, ascending.

    `arrived_count` includes requests that cascades sent to it. `deferred_count` of the `scored_count` requests moved
    to the next pool; `stood_in_count` moved without a score. `thins`: the plan relies on requests of this pool to
    skip as many steps as they may.
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
    stood_in_count: int = 0
    confidences: list[int] = field(default_factory=lambda: [0] * CONFIDENCE_BINS)
    # As in ThinnableSteps.
    from_noise_count: int = 0
    spare_shares: float = 0.0
    lost_shares: float = 0.0
    thins: bool = False
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def thinnable(self) -> ThinnableSteps:
        """Return the steps that requests from noise could skip under load."""
        return ThinnableSteps(self.from_noise_count, self.spare_shares, self.lost_shares)

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

    def expect_credit(self, request: Request, at: float | None) -> None:
        """Expect a running request to free its credit at another time, None if it has freed it; no effect if it has
        none."""
        if request.ends_at is not None:
            del self.ends[bisect_left(self.ends, request.ends_at)]
            request.ends_at = at
            if at is not None:
                insort(self.ends, at)
