"""Describe the events of a dataplane. Times are monotonic seconds; work is in pixel steps (width x height x steps).

Numbers come from outside: a confidence, plan or profile that is not finite is ignored.
"""

from dataclasses import dataclass
from enum import Enum

from pentimento.domain.fleet import Plan
from pentimento.domain.foresight import PromptForesight
from pentimento.domain.tenants import TenantQuota
from pentimento.policies.adapter_needs import NO_NEEDS, AdapterHoldings, AdapterNeeds
from pentimento.policies.thinning import WHOLE, ThinningOffer

AttemptKey = tuple[str, int]
"""(request id, fencing token)."""


class FailureKind(Enum):
    """Name the causes of an attempt without an image; they decide whether the request runs again."""

    # The worker died, ran out of memory or broke the stream: rerun elsewhere, counted.
    WORKER_LOST = "worker_lost"
    # The worker holds another model or another generation of it: back to the queue, not counted.
    NOT_HELD = "not_held"
    # The worker had no room after all: back to the queue, not counted.
    NO_CREDIT = "no_credit"
    # Nothing to attach to: back to the queue, not counted.
    GONE = "gone"
    # The worker's own clock ended the attempt.
    DEADLINE = "deadline"
    # The worker received a request to stop.
    STOPPED = "stopped"
    # The request itself is at fault, or a defect: a retry would end in the same way.
    FATAL = "fatal"


class Event:
    """A report to the dataplane."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OfRequest(Event):
    """Report on a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class OfAttempt(OfRequest):
    """Report on an attempt of a request."""

    fencing_token: int

    @property
    def key(self) -> AttemptKey:
        """Return the attempt."""
        return (self.request_id, self.fencing_token)


@dataclass(frozen=True, slots=True)
class RequestArrived(OfRequest):
    """Request admission of a valid request to `pool`.

    `cascade`: pools in order, beginning with `pool` (DiffServe, section 3.1); none or one is no cascade; `cascade_name`
    is the plan's. `needs`: requirements of its LoRAs and ControlNets on a worker, the same at every stage. `thinning`:
    the steps that it may skip in `pool` if it starts from noise. `others`: further requests that differ only by their
    seeds (several images of one call); all are admitted or all rejected. `has_inputs`: it came with images, which its
    worker has to fetch and decode before it can begin. `planned`: a plan's shares chose its pool, not the client, so
    another plan may send it elsewhere.
    """

    tenant: str
    pool: str
    work: float
    deadline: float
    cascade: tuple[str, ...] = ()
    needs: AdapterNeeds = NO_NEEDS
    thinning: ThinningOffer = WHOLE
    others: tuple[str, ...] = ()
    cascade_name: str = ""
    has_inputs: bool = False
    planned: bool = False

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Return the ids of all that arrive together."""
        return (self.request_id, *self.others)


class AcceptPersisted(OfRequest):
    """Report that the journal holds the request durably."""


class AcceptDropped(OfRequest):
    """Report that the request must not run: its idempotency key is in use, or the journal could not store it."""


@dataclass(frozen=True, slots=True)
class RouteOption:
    """Describe a lane that may run the request instead, its work there, and the steps that it may skip."""

    pool: str
    model_digest: str
    work: float
    thinning: ThinningOffer = WHOLE


@dataclass(frozen=True, slots=True)
class RouteResolved(OfRequest):
    """Answer ResolveRoute for that stage of the cascade: the start and the model of the request; `work` is the work
    left from that start.

    `spare`: lanes that take the request while they have no requests of their own (MoDM: a large worker takes hits when
    it has no misses); the first attempt pins the lane. `pair`: the halves of its guidance may run on two workers, while
    a second one is idle (Katz, latent parallelism). `start`: its kind, as plans name it. `cascade`: the pools of the
    stages for such a start, if they are known only now; `cascade_name` is the plan's. `thinning`: the remaining steps
    that it may skip. `foreseen`: the discriminator's prediction of this stage's image from the prompt; None without
    one. `light_price`: seconds of this stage ÷ those of the next; 0 if unknown.
    """

    pool: str
    model_digest: str
    work: float
    cascade_stage: int = 0
    spare: tuple[RouteOption, ...] = ()
    pair: bool = False
    start: str = "noise"
    cascade: tuple[str, ...] = ()
    cascade_name: str = ""
    thinning: ThinningOffer = WHOLE
    foreseen: PromptForesight | None = None
    light_price: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptPersisted(OfAttempt):
    """Answer PersistAttempt: `won` is False if another frontdoor has ended the request or holds a newer token."""

    won: bool = True


class AttemptStarted(OfAttempt):
    """Report that the worker has begun the attempt; before, it may have waited there after another."""


class AttemptYielded(OfAttempt):
    """Report that the attempt's batch slot is about to be free: it holds a credit no longer."""


@dataclass(frozen=True, slots=True)
class AttemptProgressed(OfAttempt):
    """Report that the worker has completed `step` steps of the attempt's schedule."""

    step: int


@dataclass(frozen=True, slots=True)
class AttemptFinished(OfAttempt):
    """Report that an attempt has an image, not yet committed. `painted_work`: the pixel steps that really ran, if they
    differ from the routed work; 0 otherwise."""

    painted_work: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptFailed(OfAttempt):
    """Report that an attempt ended without an image; `kind` decides whether the request runs again."""

    kind: FailureKind
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Scored(OfAttempt):
    """Answer Score: softmax of 'real', 0..1; None if the discriminator did not answer."""

    confidence: float | None


@dataclass(frozen=True, slots=True)
class ResultCommitted(OfAttempt):
    """Answer the compare-and-set: `won` is False if a newer attempt or another ending came first."""

    won: bool


@dataclass(frozen=True, slots=True)
class CommitFailed(OfAttempt):
    """Report that the image could not be stored."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class EndPersisted(OfRequest):
    """Answer PersistEnd: `won` is False if the request had ended already."""

    won: bool


@dataclass(frozen=True, slots=True)
class EffectFailed(OfRequest):
    """Report that an effect raised: it gets no other answer, and it may or may not have been carried out.

    `effect` is the name of its kind; `fencing_token` is 0 for a kind that has none.
    """

    effect: str
    fencing_token: int = 0


@dataclass(frozen=True, slots=True)
class CancelRequested(OfRequest):
    """Cancel a request. `client_left`: the stream broke without a cancel; the recorded reason differs."""

    client_left: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReported(Event):
    """Report the holdings and the capacity of a worker: `credit_count` attempts, and `reserve_count` more that are due
    before a running one; `preparing_count`: further attempts that prepare their inputs, 0 if preparing holds a
    credit. `pinned`: named by the operator, so no plan is needed;
    `pairable`: it can compute one half of the guidance for another worker. `holdings`: its LoRAs and ControlNets; None
    if unchanged since the last report."""

    worker_id: str
    model: str
    model_digest: str
    worker_generation: int
    credit_count: int
    draining: bool = False
    pinned: bool = False
    running: frozenset[AttemptKey] = frozenset()
    pairable: bool = False
    reserve_count: int = 0
    holdings: AdapterHoldings | None = None
    preparing_count: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLost(Event):
    """Report that the stream of credits broke or fell silent."""

    worker_id: str
    worker_generation: int


@dataclass(frozen=True, slots=True)
class PlanReceived(Event):
    """Report a new plan of the controller."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class SpeedProfile:
    """Describe e(b) of a pool, or of a model and all pools that hold it: (batch size, seconds per unit of work of each
    request in a batch of that size), ascending; linear between sizes, constant outside.

    `fixed_s`: seconds once a request, independent of its work (preparing, decoding, encoding).
    """

    name: str
    seconds_per_work: tuple[tuple[int, float], ...]
    fixed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfilesReceived(Event):
    """Report measured speeds, which start predictions until attempts correct them; other profiles stay unchanged."""

    profiles: tuple[SpeedProfile, ...]


@dataclass(frozen=True, slots=True)
class QuotasReceived(Event):
    """Replace the quotas of all tenants: (tenant, quota)."""

    quotas: tuple[tuple[str, TenantQuota], ...]


@dataclass(frozen=True, slots=True)
class RecoveredRequest:
    """Describe an unfinished request of the journal; `pool`, `model_digest` and `work` are of its route if it has one
    (`route_pinned`).

    `cascade_stage`: of that route; the attempt is the newest one of that stage. Images of earlier stages are lost.
    `planned` as in RequestArrived.
    """

    request_id: str
    tenant: str
    pool: str
    work: float
    deadline: float
    route_pinned: bool = False
    model_digest: str = ""
    attempt_number: int = 0
    fencing_token: int = 0
    worker_id: str = ""
    cascade: tuple[str, ...] = ()
    cascade_stage: int = 0
    cascade_name: str = ""
    start: str = "noise"
    needs: AdapterNeeds = NO_NEEDS
    has_inputs: bool = False
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """Report the unfinished requests of the journal, after a start or a takeover."""

    requests: tuple[RecoveredRequest, ...]


@dataclass(frozen=True, slots=True)
class TookOver(Event):
    """Report that this frontdoor, until now a standby (epoch 0), holds the lease: `epoch` exceeds every earlier one.

    Until then every request is rejected with STANDBY. `Recovered` follows.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    """Accept no new requests; finish the accepted ones."""


@dataclass(frozen=True, slots=True)
class TimePassed(Event):
    """Report that the time of `Dataplane.next_wakeup` has come."""
