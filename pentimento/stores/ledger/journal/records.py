"""Define rows of the journal. Times are wall-clock seconds; bytes are serialised messages that the journal never
reads."""

from dataclasses import dataclass, field
from enum import Enum, auto

from pentimento.domain.generation import Attempt, ObjectReference, SpecInput
from pentimento.domain.requests import RequestState


@dataclass(frozen=True)
class AcceptedRequest:
    """Hold a request that is durable before its client receives *accepted*. `idempotency_key` is "" if the client gave
    none, `body_format` names the format of `body`. `detached`: the request continues without listeners."""

    request_id: str
    tenant: str
    body: bytes = field(repr=False)
    body_hash: str
    accepted_at: float
    idempotency_key: str = ""
    deadline_at: float | None = None
    frontdoor_id: str = ""
    frontdoor_epoch: int = 0
    body_format: int = 0
    detached: bool = False


class AcceptKind(Enum):
    """Name the journal's answers to an acceptance."""

    NEW = auto()
    # The same idempotency key and body: `request_id` is the first request's.
    EXISTING = auto()
    # The same idempotency key with another body: the caller rejects it with FAILED_PRECONDITION.
    BODY_DIFFERS = auto()


@dataclass(frozen=True)
class AcceptOutcome:
    """Answer an acceptance: `request_id` and `state` are those of the request that now holds the key."""

    kind: AcceptKind
    request_id: str
    state: RequestState = RequestState.ACCEPTED


@dataclass(frozen=True)
class AttemptRecord:
    """Record an attempt. `handed_picture`: its input from the stage before, serialised; empty without one."""

    attempt: Attempt
    worker_id: str
    started_at: float
    cascade_stage: int
    handed_picture: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class ResultRecord:
    """Record a committed result. The object store has the image, unless its key is "": then the image was deleted
    before the row. `provenance` is the serialised record of its generation."""

    image: ObjectReference
    image_format: str
    width_px: int
    height_px: int
    provenance: bytes = field(repr=False)
    completed_at: float


@dataclass(frozen=True)
class JournalledRequest:
    """Record a request in the journal. Only the token of `newest_attempt` can commit a result; `cascade_stage` is that
    of its route. `accepted_counted_s`: by the journal's own time."""

    request: AcceptedRequest
    state: RequestState
    route: bytes | None = field(repr=False)
    newest_attempt: AttemptRecord | None
    attempt_count: int
    result: ResultRecord | None
    error_reason: str
    error_message: str
    finished_at: float | None
    cascade_stage: int
    accepted_counted_s: float | None = None


@dataclass(frozen=True)
class PicturePin:
    """Pin a request so that its image can be replayed until `expires_at`: its inputs stay, and `size_bytes` count
    towards the tenant's pinned bytes."""

    request_id: str
    tenant: str
    expires_at: float
    size_bytes: int
    inputs: tuple[SpecInput, ...] = ()


@dataclass(frozen=True)
class SpooledObject:
    """Name an object of a tenant that waits in the journal for its store."""

    tenant: str
    object: ObjectReference


@dataclass(frozen=True)
class KeptResults:
    """Count a tenant's ended requests, and the bytes of their stored images."""

    tenant: str
    request_count: int
    size_bytes: int
