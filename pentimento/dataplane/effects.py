"""What is to be done. Their order within a list is the order of durability: what comes first happens first."""

from dataclasses import dataclass
from enum import Enum


class End(Enum):
    """How a request ends without a picture."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    # Given up before its deadline, which it was predicted to miss.
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer with an error; nothing was accepted and nothing is kept. `retry_after_ms` 0: the same request would never
    be accepted. `quota`: the one of the tenant's that refuses, empty where it is none of them."""

    request_id: str
    reason: str
    message: str
    retry_after_ms: int
    quota: str = ""


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
    """Decide where this stage of the cascade starts; answered by RouteResolved, whatever is down. `anew`: nobody is
    left for the stages of before, and from this one on they are those of the plan of now, which the answer names."""

    request_id: str
    cascade_stage: int = 0
    anew: bool = False


@dataclass(frozen=True, slots=True)
class PersistAttempt:
    """Journal the stage's route (once) and the attempt; answered by AttemptPersisted.

    `option`: which of the route's lanes took it, 0 for its own, i for `RouteResolved.spare[i - 1]`; the same for every
    attempt of the stage.
    """

    request_id: str
    attempt_number: int
    fencing_token: int
    worker_id: str
    cascade_stage: int = 0
    option: int = 0


@dataclass(frozen=True, slots=True)
class ReservePair:
    """Run the Execute that follows on two workers: `peer_id` has a credit set aside for the other half of the guidance
    (Katz, section 7). Should the peer be lost, the worker goes on alone."""

    request_id: str
    fencing_token: int
    worker_id: str
    peer_id: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Run the attempt; answered by AttemptFinished or AttemptFailed. `thinned_steps`: from the first of them on these
    steps alone are taken; empty for all."""

    request_id: str
    attempt_number: int
    fencing_token: int
    worker_id: str
    worker_generation: int
    deadline: float
    thinned_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Attach:
    """Go on listening to an attempt of an earlier frontdoor; answered like Execute."""

    request_id: str
    attempt_number: int
    fencing_token: int
    worker_id: str
    cascade_stage: int = 0


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Ask the worker to stop within one step; harmless when it is gone."""

    request_id: str
    fencing_token: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class ThinAttempt:
    """Ask the worker to take, from the first of `thinned_steps` on, these steps of a running attempt alone; it does not
    where the attempt has passed that one."""

    request_id: str
    fencing_token: int
    worker_id: str
    thinned_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Ask the discriminator for its confidence in the attempt's picture; answered by Scored, whatever is down."""

    request_id: str
    fencing_token: int
    cascade_stage: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Store the picture of the attempt `picture_token`, then compare-and-set it into the journal under the newest
    token, `fencing_token`; answered by ResultCommitted or CommitFailed.

    The two differ where a light picture stands in for a heavy one.
    `degraded`: why the picture is less than was asked for, for its provenance: UNSCORED (the discriminator did not
    answer), PREDICTED_LATE, DEADLINE_EXCEEDED or the heavy attempt's own failure; "" when nothing is wrong with it.
    """

    request_id: str
    attempt_number: int
    fencing_token: int
    picture_token: int
    degraded: str = ""


@dataclass(frozen=True, slots=True)
class CommitCacheEntries:
    """Make what the accepted attempt captured findable."""

    request_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class ReleaseGrant:
    """Give the attempt's grant back: nothing of it enters the cache."""

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
class Drop:
    """Journal the end DROPPED, unless the request has ended; answered by EndPersisted.

    PREDICTED_LATE: it would still wait `predicted_wait_s` before it ended, which is past its deadline.
    """

    request_id: str
    reason: str
    message: str
    predicted_wait_s: float
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Answer with the committed picture, that of the attempt `picture_token`."""

    request_id: str
    fencing_token: int
    picture_token: int


@dataclass(frozen=True, slots=True)
class DeliverEnd:
    """Answer with the journalled end. `retry_after_ms`: when another try is worth it, 0 where that is not known."""

    request_id: str
    end: End
    reason: str
    message: str
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeliverRecorded:
    """Answer with what the journal says: another frontdoor ended this request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Report that no accepted request is left."""


Effect = (
    Reject
    | PersistAccepted
    | PrepareRoute
    | Announce
    | ResolveRoute
    | PersistAttempt
    | ReservePair
    | Execute
    | Attach
    | StopAttempt
    | ThinAttempt
    | Score
    | CommitResult
    | CommitCacheEntries
    | ReleaseGrant
    | PersistEnd
    | Drop
    | Deliver
    | DeliverEnd
    | DeliverRecorded
    | Drained
)
