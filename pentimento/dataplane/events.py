"""What happened. Times are monotonic seconds; work is in pixel steps (width x height x denoising steps)."""

from dataclasses import dataclass
from enum import Enum

from pentimento.domain.fleet import Plan

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
    """A valid request asks to be admitted to `pool`."""

    request_id: str
    tenant: str
    pool: str
    work: float
    deadline: float


@dataclass(frozen=True, slots=True)
class AcceptPersisted:
    """The request is in the journal for good."""

    request_id: str


@dataclass(frozen=True, slots=True)
class AcceptDropped:
    """The request is not to be run: an earlier one has its idempotency key, or the journal could not take it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RouteResolved:
    """Where the request starts and on which model; `work` is what is left to do from that start."""

    request_id: str
    pool: str
    model_digest: str
    work: float


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
class AttemptFinished:
    """The picture of an attempt is here, not yet committed."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    request_id: str
    fencing_token: int
    kind: FailureKind
    reason: str = ""
    message: str = ""


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
class CancelRequested:
    """`client_left`: nobody asked, the stream broke. A client that comes back may tell the two apart by the reason."""

    request_id: str
    client_left: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """What a worker holds and how much it will take. `pinned`: named by the operator, so no plan is needed."""

    worker_id: str
    model: str
    model_digest: str
    worker_generation: int
    credit_count: int
    draining: bool = False
    pinned: bool = False
    running: frozenset[AttemptKey] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The stream of credits broke or fell silent."""

    worker_id: str
    worker_generation: int


@dataclass(frozen=True, slots=True)
class PlanReceived:
    plan: Plan


@dataclass(frozen=True, slots=True)
class RecoveredRequest:
    """An unfinished request of the journal; `pool`, `model_digest` and `work` are those of its route if it has one."""

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


@dataclass(frozen=True, slots=True)
class Recovered:
    requests: tuple[RecoveredRequest, ...]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Take no new requests; finish those that were accepted."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Due at `Dataplane.next_wakeup`."""


Event = (
    RequestArrived
    | AcceptPersisted
    | AcceptDropped
    | RouteResolved
    | AttemptPersisted
    | AttemptStarted
    | AttemptFinished
    | AttemptFailed
    | ResultCommitted
    | CommitFailed
    | EndPersisted
    | CancelRequested
    | WorkerReported
    | WorkerLost
    | PlanReceived
    | Recovered
    | DrainRequested
    | TimePassed
)
