"""Perform the effects that clients see: accepted, the image, or the error, as the journal has it."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from pentimento.api.generation.v1 import generation_pb2
from pentimento.dataplane.effects import Announce, Deliver, DeliverEnd, DeliverRecorded, Drained, End, Reject
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
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Accepted, GenerateEvent, Routed
from pentimento.domain.reasons import Reason
from pentimento.domain.requests import RequestState
from pentimento.stores.errors import FULL_RETRY_MS
from pentimento.wire.codec import from_bytes
from services.frontdoor.metrics import QUOTA_REFUSALS, REQUEST_SECONDS, REQUESTS
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.quality.comparison import accepted_light
from services.frontdoor.requests.jobs import Job

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


logger = logging.getLogger(__name__)

# Milliseconds until a retry of a request in another frontdoor, which takes over or ends within about this time.
ELSEWHERE_RETRY_MS = 1000


def announce(parts: FrontdoorParts, effect: Announce) -> None:
    REQUESTS.labels("accepted").inc()
    job = parts.jobs.get(effect.request_id)
    parts.usage.accepted(job.request.tenant)
    job.audience.accepted()


def reject(parts: FrontdoorParts, effect: Reject) -> None:
    parts.acceptance.reject(effect.reason)
    if effect.quota:
        QUOTA_REFUSALS.labels(effect.quota).inc()
    job = parts.jobs.get(effect.request_id)
    parts.usage.refused(job.request.tenant, effect.reason)
    drop_job(parts, job, rejection(effect))


def deliver(parts: FrontdoorParts, effect: Deliver) -> None:
    job = parts.jobs.get(effect.request_id)
    execution = job.executions[effect.picture_token]
    completed = execution.completed
    assert completed is not None
    _count(parts, job, RequestState.COMPLETED)
    parts.usage.delivered(job.request.tenant, completed)
    job.audience.tell(completed)
    light = accepted_light(job, execution)
    trial = job.trial_of(execution)
    parts.shadows.note(job.request.tenant, job.request.request_id, completed.provenance, light, trial)
    parts.deferrals.note(job, execution)
    drop_job(parts, job, None)


def deliver_end(parts: FrontdoorParts, effect: DeliverEnd) -> None:
    job, state = parts.jobs.get(effect.request_id), STATE_OF[effect.end]
    _count(parts, job, state)
    drop_job(parts, job, end_error(state, effect.reason, effect.message, job.failure, effect.retry_after_ms))


def deliver_recorded(parts: FrontdoorParts, effect: DeliverRecorded) -> None:
    job = parts.jobs.get(effect.request_id)
    parts.jobs.spawn(job, _tell_recorded(parts, job, effect.request_id), effect)


def note_drained(parts: FrontdoorParts, effect: Drained) -> None:
    """Let the process stop."""
    parts.drained.set()


def drop_job(parts: FrontdoorParts, job: Job, error: PentimentoError | None) -> None:
    job.audience.end(error)
    parts.jobs.end(job)


def hand_over(parts: FrontdoorParts, job: Job, request_id: str) -> None:
    """Serve the clients of `job` from the earlier request with their idempotency key: its stream while it runs, its
    answer once it has ended."""
    earlier = parts.jobs.find(request_id)
    if earlier is None:
        job.audience.tell(Accepted(request_id, replayed=True))
        parts.jobs.spawn(job, _tell_recorded(parts, job, request_id), "replay")
        return
    for listener in tuple(job.audience.listeners):
        earlier.audience.move_here(listener)
    parts.jobs.end(job)


async def _tell_recorded(parts: FrontdoorParts, job: Job, request_id: str) -> None:
    error: PentimentoError | None = None
    try:
        for event in await recorded_events(parts, request_id, job.request.tenant):
            job.audience.tell(event)
    except PentimentoError as failed:
        error = failed
        job.elsewhere = failed.reason == Reason.REQUEST_ELSEWHERE
    except Exception:
        logger.exception("the journal's answer could not be delivered")
        error = Internal("UNEXPECTED", "the frontdoor could not tell what became of the request")
    drop_job(parts, job, error)


def _count(parts: FrontdoorParts, job: Job, state: RequestState) -> None:
    REQUESTS.labels(state.value).inc()
    REQUEST_SECONDS.labels(state.value).observe(parts.clock.monotonic() - job.request.arrived_at)


def elsewhere() -> Unavailable:
    """Return the error of a request that neither runs here nor has ended."""
    message = "the request is under way in another frontdoor"
    return Unavailable(Reason.REQUEST_ELSEWHERE, message, retry_after_ms=ELSEWHERE_RETRY_MS)


async def recorded_events(parts: FrontdoorParts, request_id: str, tenant: str) -> list[GenerateEvent]:
    """Return the journalled events of a request that does not run here. Raises the error that it ended with, or
    Unavailable while another frontdoor runs it."""
    record = await asyncio.wrap_future(parts.journal.get(request_id, tenant))
    if record is None:
        raise Internal("UNEXPECTED", "the request was not accepted because of a defect of the frontdoor")
    if not record.state.terminal:
        raise elsewhere()
    if record.state is not RequestState.COMPLETED:
        raise end_error(record.state, record.error_reason, record.error_message, None)
    routed: list[GenerateEvent] = (
        [Routed(from_bytes(record.route, Route, generation_pb2.Route))] if record.route else []
    )
    return [*routed, await parts.results.load(record)]
