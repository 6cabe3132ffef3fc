"""Convert the end of a request in the journal to the error that its client receives."""

from collections.abc import Mapping
from dataclasses import replace

from pentimento.dataplane.effects import End, Reject
from pentimento.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PentimentoError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.reasons import Reason
from pentimento.domain.requests import RequestState
from pentimento.stores.errors import FULL_RETRY_MS

STATE_OF = {
    End.FAILED: RequestState.FAILED,
    End.CANCELLED: RequestState.CANCELLED,
    End.EXPIRED: RequestState.EXPIRED,
    End.DROPPED: RequestState.EXPIRED,
}


def rejection(effect: Reject) -> PentimentoError:
    if effect.reason == Reason.POOL_NOT_ALLOWED:
        return PermissionDenied(effect.reason, effect.message)
    error = Unavailable if effect.reason in (Reason.DRAINING, Reason.STANDBY) else ResourceExhausted
    metadata = {"quota": effect.quota} if effect.quota else None
    return error(effect.reason, effect.message, retry_after_ms=effect.retry_after_ms or None, metadata=metadata)


KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"


def key_reused() -> PentimentoError:
    message = "idempotency_key: must come with the request body it was first used with"
    return FailedPrecondition(KEY_REUSED, message)


# The prefix of an attempt's fields in a worker's errors; clients know the fields without it.
ATTEMPTS_OWN = "spec."


def as_asked(error: PentimentoError) -> PentimentoError:
    """Return a worker's error with the field names of the client's request."""
    if not any(violation.field.startswith(ATTEMPTS_OWN) for violation in error.violations):
        return error
    violations = [replace(one, field=one.field.removeprefix(ATTEMPTS_OWN)) for one in error.violations]
    return type(error)(
        error.reason,
        error.message.removeprefix(ATTEMPTS_OWN),
        violations=tuple(violations),
        retry_after_ms=error.retry_after_ms,
        metadata=error.metadata,
    )


# The image was generated and could not be stored.
NOT_KEPT: Mapping[str, type[PentimentoError]] = {
    "STORE_FULL": ResourceExhausted,
    "SPOOL_FULL": ResourceExhausted,
    "STORE_UNAVAILABLE": Unavailable,
}
# Ends that ask for a retry: their idempotency keys are freed, so that a retry runs again instead of getting the same
# error.
FREES_KEY = frozenset({*NOT_KEPT, Reason.PREDICTED_LATE})
# For later callers, when the length of the queue is no longer known.
DROPPED_RETRY_MS = 1000


def end_error(
    state: RequestState, reason: str, message: str, failure: PentimentoError | None, retry_after_ms: int = 0
) -> PentimentoError:
    """Return the error of an ended request. `failure` is the attempt's error if this process received it; the journal
    stores only reason and message."""
    if reason == Reason.PREDICTED_LATE:
        return ResourceExhausted(reason, message, retry_after_ms=retry_after_ms or DROPPED_RETRY_MS)
    if state is RequestState.CANCELLED:
        return Cancelled(reason, message)
    if state is RequestState.EXPIRED:
        return DeadlineExceeded(reason, message)
    if reason in NOT_KEPT:
        return NOT_KEPT[reason](reason, message, retry_after_ms=FULL_RETRY_MS)
    if failure is not None and failure.reason == reason:
        return failure
    if reason == Reason.ANCESTOR_GONE:
        return NotFound(reason, message)
    if reason in (Reason.WORKER_LOST, Reason.INPUT_UNAVAILABLE, Reason.CONTROLNET_LOST):
        return Unavailable(reason, message)
    if reason in (Reason.EFFECT_FAILED, Reason.UNREADABLE_REQUEST):
        return Internal(reason, message)
    return FailedPrecondition(reason, f"the request failed: {message}")
