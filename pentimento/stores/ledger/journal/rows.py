"""Convert the journal's records to rows of its tables, and back."""

from dataclasses import fields
from typing import Any

from sqlalchemy import and_, select

from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.journal.records import AcceptedRequest, AttemptRecord, JournalledRequest, ResultRecord

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
