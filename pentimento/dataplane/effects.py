"""Describe the effects that a dataplane requests. Their order within a list is the order of durability: the first
effect happens first."""

from dataclasses import dataclass
from enum import Enum


class End(Enum):
    """List the ends of a request without an image."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    # Abandoned before its deadline, which it was predicted to miss.
    DROPPED = "dropped"


class Effect:
    """A request of the dataplane to its performer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EffectOnRequest(Effect):
    """Act on a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class EffectOnAttempt(EffectOnRequest):
    """Act on an attempt of a request."""

    fencing_token: int


@dataclass(frozen=True, slots=True)
class Reject(EffectOnRequest):
    """Answer with an error; nothing is accepted or stored. `retry_after_ms` 0: the same request would never be
    accepted. `quota`: the tenant's quota that rejects it, "" for any other cause."""

    reason: str
    message: str
    retry_after_ms: int
    quota: str = ""


class PersistAccepted(EffectOnRequest):
    """Journal the request; answered by AcceptPersisted or AcceptDropped."""


class PrepareRoute(EffectOnRequest):
    """Begin the part of the routing that leaves no trace (the embedding), during the journal's commit."""


class Announce(EffectOnRequest):
    """Send the client the acceptance of its request."""


@dataclass(frozen=True, slots=True)
class ResolveRoute(EffectOnRequest):
    """Decide where this stage of the cascade starts; always answered by RouteResolved, even if services are down.
    With `anew` the earlier stages have no workers: the current plan chooses the stages from this one on, and the
    answer names them."""

    cascade_stage: int = 0
    anew: bool = False


@dataclass(frozen=True, slots=True)
class PersistAttempt(EffectOnRequest):
    """Journal the stage's route (once) and the attempt; answered by AttemptPersisted.

    `option`: the route's lane that took the request, 0 for its own, i for `RouteResolved.spare[i - 1]`; the same for
    every attempt of the stage.
    """

    attempt_number: int
    fencing_token: int
    worker_id: str
    cascade_stage: int = 0
    option: int = 0


@dataclass(frozen=True, slots=True)
class ReservePair(EffectOnAttempt):
    """Run the following Execute on two workers: `peer_id` has a credit reserved for the other half of the guidance
    (Katz, section 7). If the peer is lost, the worker continues without it."""

    worker_id: str
    peer_id: str


@dataclass(frozen=True, slots=True)
class Execute(EffectOnRequest):
    """Run the attempt; answered by AttemptFinished or AttemptFailed. `thinned_steps`: the only steps that run, from the
    first one on; empty for all."""

    attempt_number: int
    fencing_token: int
    worker_id: str
    worker_generation: int
    deadline: float
    thinned_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Attach(EffectOnRequest):
    """Resume the stream of an attempt that an earlier frontdoor started; answered like Execute."""

    attempt_number: int
    fencing_token: int
    worker_id: str
    cascade_stage: int = 0


@dataclass(frozen=True, slots=True)
class StopAttempt(EffectOnAttempt):
    """Ask the worker to stop within one step; harmless if the attempt or its worker is gone."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class ThinAttempt(EffectOnAttempt):
    """Ask the worker to run only these steps of a running attempt from the first of `thinned_steps` on; no effect if
    the attempt has passed that one."""

    worker_id: str
    thinned_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score(EffectOnAttempt):
    """Request the discriminator's confidence in the attempt's image; always answered by Scored, even without one."""

    cascade_stage: int


@dataclass(frozen=True, slots=True)
class CommitResult(EffectOnRequest):
    """Store the image of the attempt `picture_token`, then compare-and-set it into the journal under the newest token,
    `fencing_token`; answered by ResultCommitted or CommitFailed.

    The two tokens differ if a light image replaces a heavy one.
    `degraded`: the reason why the image is of lower quality, for its provenance: UNSCORED (the discriminator did not
    answer), PREDICTED_LATE, DEADLINE_EXCEEDED or the heavy attempt's own failure; "" for full quality.
    """

    attempt_number: int
    fencing_token: int
    picture_token: int
    degraded: str = ""


class CommitCacheEntries(EffectOnAttempt):
    """Publish the cache entries that the accepted attempt captured."""


class ReleaseGrant(EffectOnAttempt):
    """Release the attempt's grant: it adds nothing to the cache."""


@dataclass(frozen=True, slots=True)
class PersistEnd(EffectOnRequest):
    """Journal the end, unless the request has ended; answered by EndPersisted."""

    end: End
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Deliver(EffectOnAttempt):
    """Answer with the committed image of the attempt `picture_token`."""

    picture_token: int


@dataclass(frozen=True, slots=True)
class DeliverEnd(EffectOnRequest):
    """Answer with the journalled end. `retry_after_ms`: when a retry is worthwhile, 0 if unknown."""

    end: End
    reason: str
    message: str
    retry_after_ms: int = 0


class DeliverRecorded(EffectOnRequest):
    """Answer with the journal's result: another frontdoor ended this request."""


@dataclass(frozen=True, slots=True)
class Drained(Effect):
    """Report that no accepted request is left."""


_BASES = (Effect, EffectOnRequest, EffectOnAttempt)
EFFECTS = tuple(
    one for one in tuple(globals().values()) if isinstance(one, type) and issubclass(one, Effect) and one not in _BASES
)
