"""What happened. Times are monotonic seconds; work is in pixel steps (width x height x denoising steps).

Numbers come from outside: a confidence, plan or profile that is not finite counts as none.
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
    """Why an attempt ended without a picture; it decides whether the request gets another."""

    # The worker died, ran out of memory or broke the stream: rerun elsewhere, counted.
    WORKER_LOST = "worker_lost"
    # The worker holds another model or another generation of it: back to the queue, not counted.
    NOT_HELD = "not_held"
    # The worker had no room after all: back to the queue, not counted.
    NO_CREDIT = "no_credit"
    # Nothing to attach to: back to the queue, not counted.
    GONE = "gone"
    # The worker's own clock ended it.
    DEADLINE = "deadline"
    # It was asked to stop.
    STOPPED = "stopped"
    # The request itself is at fault, or a defect: another try would end the same way.
    FATAL = "fatal"


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A valid request asks to be admitted to `pool`.

    `cascade`: pools in order, beginning with `pool` (DiffServe, section 3.1); none or one is no cascade; `cascade_name`
    is the plan's. `needs`: what its LoRAs and ControlNets ask of a worker, the same at every stage. `thinning`: which
    of its steps may be left out in `pool` where it starts from noise. `others`: further requests that differ from it by
    their seeds alone (several pictures of one call), which are admitted with it or refused with it. `has_inputs`: it
    came with images, which its worker has to fetch and decode before it can begin. `planned`: a plan's shares sent it
    to its pool, and not its own wish, so that another plan may send it elsewhere.
    """

    request_id: str
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


@dataclass(frozen=True, slots=True)
class AcceptPersisted:
    """The request is in the journal for good."""

    request_id: str


@dataclass(frozen=True, slots=True)
class AcceptDropped:
    """The request is not to be run: an earlier one has its idempotency key, or the journal could not take it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RouteOption:
    """A lane that may run the request instead, what it would have to do there, and which steps it may leave out."""

    pool: str
    model_digest: str
    work: float
    thinning: ThinningOffer = WHOLE


@dataclass(frozen=True, slots=True)
class RouteResolved:
    """Answer to ResolveRoute for that stage of the cascade: where the request starts and on which model; `work` is what
    is left to do from that start.

    `spare`: lanes that take the request while they have none of their own (MoDM: a large worker takes hits when it has
    no misses); which one does is pinned with the first attempt. `pair`: the halves of its guidance may run on two
    workers, while a second one is idle (Katz, latent parallelism). `start`: its kind, as plans name it. `cascade`: the
    pools of the stages that a request of such a start goes through, where that is known only now; `cascade_name` is the
    plan's. `thinning`: which of the steps left may be left out. `foreseen`: the discriminator's prediction of this
    stage's image, by the prompt only; None without one. `light_price`: seconds of this stage ÷ those of the next; 0 if
    unknown.
    """

    request_id: str
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
class AttemptPersisted:
    """Answer to PersistAttempt: `won` is False when somebody else has ended the request or holds a newer token."""

    request_id: str
    fencing_token: int
    won: bool = True


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The worker has begun with it; until then it may have been waiting there behind another."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class AttemptYielded:
    """Its place at the worker is about to be free: it holds a credit no longer."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class AttemptProgressed:
    """The worker has done so many steps of the attempt's schedule."""

    request_id: str
    fencing_token: int
    step: int


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The picture of an attempt is here, not yet committed. `painted_work` is what it really took, in pixel steps,
    where that is not what the request was routed with; 0 where it is."""

    request_id: str
    fencing_token: int
    painted_work: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt ended without a picture; `kind` decides whether the request gets another."""

    request_id: str
    fencing_token: int
    kind: FailureKind
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Answer to Score: softmax of 'real', 0..1; None where the discriminator did not answer."""

    request_id: str
    fencing_token: int
    confidence: float | None


@dataclass(frozen=True, slots=True)
class ResultCommitted:
    """Answer of the compare-and-set: `won` is False when a newer attempt or another ending came first."""

    request_id: str
    fencing_token: int
    won: bool


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The picture could not be stored."""

    request_id: str
    fencing_token: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class EndPersisted:
    """Answer to PersistEnd: `won` is False when the request had ended already."""

    request_id: str
    won: bool


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """Performing an effect ended in a defect: its answer will not come, and whether it was carried out is not known.

    `effect` is the name of its kind; `fencing_token` is 0 for a kind that has none.
    """

    request_id: str
    effect: str
    fencing_token: int = 0


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """`client_left`: nobody asked, the stream broke. A client that comes back may tell the two apart by the reason."""

    request_id: str
    client_left: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """What a worker holds and how much it will take: `credit_count` attempts, and `reserve_count` more that are due
    before one that it has; `preparing_count`: attempts besides that prepare their inputs, 0 where those hold a credit
    meanwhile. `pinned`: named by the operator, so no plan is needed;
    `pairable`: it can compute one half of the guidance for another worker. `holdings`: what it has for LoRAs and
    ControlNets; None where that is as it was told before."""

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
class WorkerLost:
    """The stream of credits broke or fell silent."""

    worker_id: str
    worker_generation: int


@dataclass(frozen=True, slots=True)
class PlanReceived:
    """A plan of the controller has come."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class SpeedProfile:
    """e(b) of a pool, or of a model and all pools that hold it: (batch size, seconds per unit of work of each request
    while it runs in a batch of that size), ascending; between sizes on the straight line, outside as at the end.

    `fixed_s`: seconds once a request, however much work it is (preparing, decoding, encoding).
    """

    name: str
    seconds_per_work: tuple[tuple[int, float], ...]
    fixed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfilesReceived:
    """Measured speeds, which predictions start from and attempts then correct; those not named stay as they are."""

    profiles: tuple[SpeedProfile, ...]


@dataclass(frozen=True, slots=True)
class QuotasReceived:
    """The quotas of all tenants that have any, from now on: (tenant, quota)."""

    quotas: tuple[tuple[str, TenantQuota], ...]


@dataclass(frozen=True, slots=True)
class RecoveredRequest:
    """An unfinished request of the journal; `pool`, `model_digest` and `work` are those of its route if it has one.

    `cascade_stage`: of that route; the attempt is the newest one of that stage. What earlier stages painted is lost.
    `planned` as in RequestArrived.
    """

    request_id: str
    tenant: str
    pool: str
    work: float
    deadline: float
    routed: bool = False
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
class Recovered:
    """The unfinished requests of the journal, after a start or a takeover."""

    requests: tuple[RecoveredRequest, ...]


@dataclass(frozen=True, slots=True)
class TookOver:
    """This frontdoor, a standby until now (epoch 0), holds the lease: `epoch` is larger than that of every one before.

    Until then every request is rejected with STANDBY. `Recovered` follows.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Take no new requests; finish those that were accepted."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of `Dataplane.next_wakeup` has come."""


Event = (
    RequestArrived
    | AcceptPersisted
    | AcceptDropped
    | RouteResolved
    | AttemptPersisted
    | AttemptStarted
    | AttemptYielded
    | AttemptProgressed
    | AttemptFinished
    | AttemptFailed
    | Scored
    | ResultCommitted
    | CommitFailed
    | EndPersisted
    | EffectFailed
    | CancelRequested
    | WorkerReported
    | WorkerLost
    | PlanReceived
    | ProfilesReceived
    | QuotasReceived
    | Recovered
    | TookOver
    | DrainRequested
    | TimePassed
)
