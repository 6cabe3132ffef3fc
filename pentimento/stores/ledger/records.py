"""Rows of the journal. Times are wall-clock seconds; bytes are serialised messages that it never looks into."""

from dataclasses import dataclass, field
from enum import Enum, auto

from pentimento.domain.generation import Attempt, ObjectReference, SpecInput
from pentimento.domain.requests import RequestState


@dataclass(frozen=True)
class AcceptedRequest:
    """What is durable before a client hears *accepted*. `idempotency_key` is "" where the client gave none,
    `body_format` tells whoever reads `body` how. `detached`: it goes on without listeners."""

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
    """How the journal answered an acceptance."""

    NEW = auto()
    # The same idempotency key and body: `request_id` is the first request's.
    EXISTING = auto()
    # The same idempotency key with another body: to be refused as FAILED_PRECONDITION.
    BODY_DIFFERS = auto()


@dataclass(frozen=True)
class AcceptOutcome:
    """The journal's answer to an acceptance: `request_id` and `state` are those of the request that holds the key
    now."""

    kind: AcceptKind
    request_id: str
    state: RequestState = RequestState.ACCEPTED


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt as the journal knows it. `handed_picture`: what it started from of the stage before, serialised; empty
    where that was nothing."""

    attempt: Attempt
    worker_id: str
    started_at: float
    cascade_stage: int
    handed_picture: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class ResultRecord:
    """A committed result. The picture lies in the object store, unless its key is "": then it was forgotten before the
    rest. `provenance` is the serialised record of how it came to be."""

    image: ObjectReference
    image_format: str
    width_px: int
    height_px: int
    provenance: bytes = field(repr=False)
    completed_at: float


@dataclass(frozen=True)
class JournalledRequest:
    """A request as the journal knows it. Results are committed under the token of `newest_attempt` alone;
    `cascade_stage` is that of its route. `accepted_counted_s`: by the journal's own time."""

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
    """A request whose picture can be replayed until `expires_at`: what it came with stays, and `size_bytes` count among
    what its tenant has pinned."""

    request_id: str
    tenant: str
    expires_at: float
    size_bytes: int
    inputs: tuple[SpecInput, ...] = ()


@dataclass(frozen=True)
class SpooledObject:
    """An object of a tenant's that waits in the journal for its store."""

    tenant: str
    object: ObjectReference


@dataclass(frozen=True)
class KeptResults:
    """Requests of a tenant that have ended, and the bytes of their pictures that are still kept."""

    tenant: str
    request_count: int
    size_bytes: int
