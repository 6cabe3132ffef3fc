"""Where requests wait and who takes them: workers, lanes of one model each, and pools with their load and counts."""

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
    """A worker as it last described itself. `abandoned`: attempts we gave up that it may still be running.

    Of those in flight, `preparing` hold no credit yet: their inputs are fetched and decoded beside what is painted, at
    most `preparing_count` at once. `begun` are the ones that it has started on, and `yielded` those that hold no credit
    any more, about to end. `lost_begun`: one of them was lost with this process, so those that only waited behind it
    are not to blame. `slowdown` as in `Speed`; None before its first picture.
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
    # False from a refusal until the worker's next word: what we believed of it was stale.
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
    # Of one that is lost.
    forget_at: float = 0.0
    # What it adds to its pools' credits and throughput: (pool, credits, work a second).
    counted: tuple[tuple[str, int, float], ...] = ()

    @property
    def painting_count(self) -> int:
        """The attempts at its device, those that are about to end included."""
        return len(self.in_flight) + len(self.abandoned) - len(self.preparing)

    @property
    def used_credits(self) -> int:
        """The credits that are taken: those of attempts at its device, less those that are about to end."""
        return self.painting_count - len(self.yielded)

    def holds(self, model_digest: str) -> bool:
        """Return whether the worker is connected and holds that model."""
        return self.connected and self.model_digest == model_digest


@dataclass(slots=True)
class Lane:
    """Requests of one pool pinned to one digest, and the workers that could take them now. Reruns go first, then those
    `set_aside`: their turn has come, and no worker with a free credit had the LoRAs or ControlNets that they need;
    `spare` are other lanes' requests, which go last. `preparers`: workers that would take a request with inputs.
    `reserve`: workers without a credit that would take somebody more urgent than one that they have, the least urgent
    of theirs first. `inputs`: those of its requests that have inputs."""

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
        """Offer the worker no longer."""
        for workers in (self.ready, self.preparers, self.reserve):
            workers.discard(worker_id)

    def note_inputs(self, request: Request) -> None:
        """Remember a request that is about to wait here, if it has inputs."""
        if request.has_inputs:
            self.inputs[request.request_id] = None

    def discard(self, request_id: str) -> None:
        """Take a request out of all queues of the lane."""
        self.reruns.pop(request_id, None)
        self.set_aside.pop(request_id, None)
        self.fresh.discard(request_id)
        self.spare.discard(request_id)
        self.inputs.pop(request_id, None)


@dataclass(slots=True)
class Backlog:
    """What of a tenant waits for a worker."""

    count: int = 0
    work: float = 0.0


@dataclass(slots=True)
class Pool:
    """Load of a pool, its counts since the start. `throughput`: work a second of its full workers, before
    `speed.slowdown`. `ends`: when those that run are expected to give their credits back, ascending.

    `arrived_count` has what cascades sent on to it, too. Of the `scored_count` `deferred_count` were sent on to the
    next pool; `stood_in_count` were so without a score. `thins`: the plan counts on it that as many steps are left out
    as may be.
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
        """What of those that came to be painted from noise may be left out under load."""
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

    def expect_credit(self, request: Request, at: float) -> None:
        """Expect a running request to give its credit back at another time; nothing where it has none."""
        if request.ends_at is not None:
            del self.ends[bisect_left(self.ends, request.ends_at)]
            request.ends_at = at
            insort(self.ends, at)

    def expect_no_credit(self, request: Request) -> None:
        """Forget when a running request gives its credit back: it has."""
        if request.ends_at is not None:
            del self.ends[bisect_left(self.ends, request.ends_at)]
            request.ends_at = None
