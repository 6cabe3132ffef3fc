"""Define rows of the journal. Times are wall-clock seconds; bytes are serialised messages that the journal never
reads."""

from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import Any

from sqlalchemy import and_, select

from pentimento.domain.generation import Attempt, ObjectReference, SpecInput
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger.journal import tables


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


_requests = tables.requests
_attempts = tables.attempts
_IS_NEWEST = and_(
    _attempts.c.request_id == _requests.c.request_id, _attempts.c.fencing_token == _requests.c.newest_token
)
# Selects every request with its newest attempt.
REQUESTS = select(_requests, *(column.label(f"attempt_{column.name}") for column in _attempts.c)).select_from(
    _requests.outerjoin(_attempts, _IS_NEWEST)
)
_OF_ATTEMPT = ("request_id", "attempt_number", "fencing_token", "frontdoor_id", "frontdoor_epoch")
_ACCEPTED = tuple(field.name for field in fields(AcceptedRequest))


def row_of_request(record: AcceptedRequest, counted_s: float | None) -> dict[str, Any]:
    """Return the row of a new request, accepted at that time of the journal's."""
    return {
        **vars(record),
        # NULLs never collide, so requests without a key are all new.
        "idempotency_key": record.idempotency_key or None,
        "state": RequestState.ACCEPTED.value,
        **dict.fromkeys(("newest_token", "newest_epoch", "attempt_count", "cascade_stage"), 0),
        **dict.fromkeys(("error_reason", "error_message"), ""),
        "detached": int(record.detached),
        "accepted_counted_s": counted_s,
    }


def row_of_attempt(
    attempt: Attempt, worker_id: str, cascade_stage: int, now: float, handed_picture: bytes = b""
) -> dict[str, Any]:
    """Return the row of an attempt that starts now, in seconds since 1970."""
    return {
        **{name: getattr(attempt, name) for name in _OF_ATTEMPT},
        "worker_id": worker_id,
        "started_at": now,
        "cascade_stage": cascade_stage,
        "handed_picture": handed_picture or None,
    }


def values_of_result(result: ResultRecord) -> dict[str, Any]:
    """Return the columns of a request's row that a result changes."""
    return {
        "state": RequestState.COMPLETED.value,
        # The body is read only to recover unfinished requests.
        "body": b"",
        "image_key": result.image.key,
        "image_digest": result.image.digest,
        "image_size_bytes": result.image.size_bytes,
        "image_format": result.image_format,
        "width_px": result.width_px,
        "height_px": result.height_px,
        "provenance": result.provenance,
        "finished_at": result.completed_at,
    }


def request_of_row(row: Any) -> JournalledRequest:
    """Return the record of a row of `REQUESTS`."""
    return JournalledRequest(
        request=_accepted(row),
        state=RequestState(row.state),
        route=row.route,
        newest_attempt=_attempt(row) if row.attempt_fencing_token is not None else None,
        attempt_count=row.attempt_count,
        result=_result(row) if row.image_key is not None else None,
        error_reason=row.error_reason,
        error_message=row.error_message,
        finished_at=row.finished_at,
        cascade_stage=row.cascade_stage,
        accepted_counted_s=row.accepted_counted_s,
    )


def _accepted(row: Any) -> AcceptedRequest:
    values = {name: getattr(row, name) for name in _ACCEPTED}
    return AcceptedRequest(**{**values, "idempotency_key": row.idempotency_key or "", "detached": bool(row.detached)})


def _attempt(row: Any) -> AttemptRecord:
    attempt = Attempt(**{name: getattr(row, f"attempt_{name}") for name in _OF_ATTEMPT}, tenant=row.tenant)
    handed_picture = row.attempt_handed_picture or b""
    started = (row.attempt_started_at, row.attempt_cascade_stage, handed_picture)
    return AttemptRecord(attempt, row.attempt_worker_id, *started)


def _result(row: Any) -> ResultRecord:
    return ResultRecord(
        image=ObjectReference(row.image_key, row.image_digest, row.image_size_bytes),
        image_format=row.image_format,
        width_px=row.width_px,
        height_px=row.height_px,
        provenance=row.provenance,
        completed_at=row.finished_at,
    )
