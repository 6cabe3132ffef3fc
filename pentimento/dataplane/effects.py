"""What is to be done. Their order within a list is the order of durability: what comes first happens first."""

from dataclasses import dataclass
from enum import Enum


class End(Enum):
    """How a request ends without a picture."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer with an error; nothing was accepted and nothing is kept."""

    request_id: str
    reason: str
    message: str
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class PersistAccepted:
    """Journal the request; answered by AcceptPersisted or AcceptDropped."""

    request_id: str


@dataclass(frozen=True, slots=True)
class PrepareRoute:
    """Begin whatever of the routing leaves no trace (the embedding), beside the journal's commit."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the client that the request is accepted."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ResolveRoute:
    """Decide where to start; answered by RouteResolved, whatever is down."""

    request_id: str


@dataclass(frozen=True, slots=True)
class PersistAttempt:
    """Journal the route (once) and the attempt; answered by AttemptPersisted."""

    request_id: str
    attempt_number: int
    fencing_token: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Run the attempt; answered by AttemptFinished or AttemptFailed."""

    request_id: str
    attempt_number: int
    fencing_token: int
    worker_id: str
    worker_generation: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Attach:
    """Go on listening to an attempt of an earlier frontdoor; answered like Execute."""

    request_id: str
    attempt_number: int
    fencing_token: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Ask the worker to stop within one step; harmless when it is gone."""

    request_id: str
    fencing_token: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Store the picture, then compare-and-set it into the journal; answered by ResultCommitted
    or CommitFailed."""

    request_id: str
    attempt_number: int
    fencing_token: int


@dataclass(frozen=True, slots=True)
class CommitCacheEntries:
    """Make what the accepted attempt captured findable."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class ReleaseGrant:
    """Nothing of this attempt enters the cache."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class PersistEnd:
    """Journal the end, unless the request has ended; answered by EndPersisted."""

    request_id: str
    end: End
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Answer with the committed picture."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class DeliverEnd:
    """Answer with the journalled end."""

    request_id: str
    end: End
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeliverRecorded:
    """Somebody else ended this request: answer with what the journal says."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Drained:
    """No accepted request is left."""


Effect = (
    Reject
    | PersistAccepted
    | PrepareRoute
    | Announce
    | ResolveRoute
    | PersistAttempt
    | Execute
    | Attach
    | StopAttempt
    | CommitResult
    | CommitCacheEntries
    | ReleaseGrant
    | PersistEnd
    | Deliver
    | DeliverEnd
    | DeliverRecorded
    | Drained
)
