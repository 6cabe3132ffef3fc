"""The journal's words for how a request ended, as the error that its client gets."""

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


# Of an attempt, by which a worker names what it judges; whoever asked for a picture knows the fields behind it.
ATTEMPTS_OWN = "spec."


def as_asked(error: PentimentoError) -> PentimentoError:
    """Return a worker's error by the fields of the request that the picture was asked for with."""
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


# The image was generated and could be kept nowhere.
NOT_KEPT: Mapping[str, type[PentimentoError]] = {
    "STORE_FULL": ResourceExhausted,
    "SPOOL_FULL": ResourceExhausted,
    "STORE_UNAVAILABLE": Unavailable,
}
# Ends that ask for a retry: their keys are free, so that the retry begins again and is not told the same for ever.
FREES_KEY = frozenset({*NOT_KEPT, Reason.PREDICTED_LATE})
# For those who ask later, when nobody knows any more how long the queue was.
DROPPED_RETRY_MS = 1000


def end_error(
    state: RequestState, reason: str, message: str, failure: PentimentoError | None, retry_after_ms: int = 0
) -> PentimentoError:
    """`failure` is what the attempt raised, where this process saw it; the journal keeps reason and message alone."""
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
