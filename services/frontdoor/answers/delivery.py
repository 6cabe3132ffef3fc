"""Answer clients: the end of a running request, or what the journal has of another one."""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.api.generation.v1 import generation_pb2
from pentimento.dataplane.effects import Deliver, DeliverEnd, DeliverRecorded, Effect, End
from pentimento.domain.clock import Clock
from pentimento.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Accepted, GenerateEvent, Routed
from pentimento.domain.jobs import RequestState
from pentimento.domain.reasons import Reason
from pentimento.stores.errors import FULL_RETRY_MS
from pentimento.stores.ledger import Journal
from pentimento.telemetry.tracing import exemplar
from pentimento.wire.codec import from_bytes
from services.frontdoor.answers.audience import Audience, Listener
from services.frontdoor.metrics import REQUEST_SECONDS, REQUESTS
from services.frontdoor.objects.results import Results
from services.frontdoor.quality.comparison import Deferrals, accepted_light
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.requests.tenant_requests import unknown_request
from services.frontdoor.tenants.usage import UsageMeter

STATE_OF = {
    End.FAILED: RequestState.FAILED,
    End.CANCELLED: RequestState.CANCELLED,
    End.EXPIRED: RequestState.EXPIRED,
    End.DROPPED: RequestState.EXPIRED,
}


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


def elsewhere() -> Unavailable:
    """Return the error of a request that neither runs here nor has ended."""
    message = "the request is under way in another frontdoor"
    return Unavailable(Reason.REQUEST_ELSEWHERE, message, retry_after_ms=ELSEWHERE_RETRY_MS)


@dataclass(frozen=True)
class RecordedAnswers:
    """Answer for earlier requests: by their streams while they run here, by the journal once they have ended."""

    journal: Journal
    results: Results
    jobs: Jobs

    async def listen(self, tenant: str, request_id: str, *, hears_progress: bool = True) -> Listener:
        """Return a listener of a journalled request, running or ended."""
        job = self.jobs.of_tenant(tenant, request_id)
        if job is not None:
            return job.audience.join_late(hears_progress=hears_progress)
        audience = Audience(request_id)
        listener = audience.join_late(hears_progress=hears_progress)
        audience.end(await self._told(audience, request_id, tenant))
        return listener

    async def attach(self, tenant: str, request_id: str, known: Container[str]) -> Listener:
        """Return a listener of a request that is `known` to the journal or about to be; for any other id, a listener
        that ends with UNKNOWN_REQUEST."""
        if request_id in known or self.jobs.of_tenant(tenant, request_id) is not None:
            return await self.listen(tenant, request_id)
        listener = Audience(request_id).join_late()
        listener.end(unknown_request())
        return listener

    def hand_over(self, job: Job, request_id: str) -> None:
        """Serve the clients of `job` from the earlier request with their idempotency key: its stream while it runs, its
        answer once it has ended."""
        earlier = self.jobs.find(request_id)
        if earlier is None:
            job.audience.tell(Accepted(request_id, replayed=True))
            self._tell(job, request_id, "replay")
            return
        for listener in tuple(job.audience.listeners):
            earlier.audience.move_here(listener)
        self.jobs.end(job)

    def deliver_recorded(self, effect: DeliverRecorded) -> None:
        self._tell(self.jobs.get(effect.request_id), effect.request_id, effect)

    def _tell(self, job: Job, request_id: str, cause: Effect | str) -> None:
        self.jobs.spawn(job, self._tell_recorded(job, request_id), cause)

    async def _tell_recorded(self, job: Job, request_id: str) -> None:
        try:
            error = await self._told(job.audience, request_id, job.request.tenant)
        except Exception:
            logger.exception("the journal's answer could not be delivered")
            error = Internal("UNEXPECTED", "the frontdoor could not tell what became of the request")
        job.elsewhere = error is not None and error.reason == Reason.REQUEST_ELSEWHERE
        self.jobs.end(job, error)

    async def _told(self, audience: Audience, request_id: str, tenant: str) -> PentimentoError | None:
        """Send the journalled events of a request; return the error that its stream ends with."""
        try:
            for event in await self._events(request_id, tenant):
                audience.tell(event)
        except PentimentoError as ended_with:
            return ended_with
        return None

    async def _events(self, request_id: str, tenant: str) -> Sequence[GenerateEvent]:
        """Return the journalled events of a request that does not run here. Raises the error that it ended with, or
        Unavailable while another frontdoor runs it."""
        record = await asyncio.wrap_future(self.journal.get(request_id, tenant))
        if record is None:
            raise Internal("UNEXPECTED", "the request was not accepted because of a defect of the frontdoor")
        if not record.state.terminal:
            raise elsewhere()
        if record.state is not RequestState.COMPLETED:
            raise end_error(record.state, record.error_reason, record.error_message, None)
        completed = await self.results.load(record)
        if not record.route:
            return [completed]
        return [Routed(from_bytes(record.route, Route, generation_pb2.Route)), completed]


@dataclass(frozen=True)
class Deliveries:
    """Answer the clients of a request that ends, as the journal has it, and count its end."""

    jobs: Jobs
    usage: UsageMeter
    shadows: Shadows
    deferrals: Deferrals
    clock: Clock

    def deliver(self, effect: Deliver) -> None:
        job = self.jobs.get(effect.request_id)
        execution, request = job.executions[effect.picture_token], job.request
        completed = execution.completed
        assert completed is not None
        self._count(job, RequestState.COMPLETED)
        self.usage.delivered(request.tenant, completed)
        job.audience.tell(completed)
        light, trial = accepted_light(job, execution), job.trial_of(execution)
        self.shadows.note(request.tenant, request.request_id, completed.provenance, light, trial)
        self.deferrals.note(job, execution)
        self.jobs.end(job)

    def deliver_end(self, effect: DeliverEnd) -> None:
        job, state = self.jobs.get(effect.request_id), STATE_OF[effect.end]
        self._count(job, state)
        self.jobs.end(job, end_error(state, effect.reason, effect.message, job.failure, effect.retry_after_ms))

    def _count(self, job: Job, state: RequestState) -> None:
        REQUESTS.labels(state.value).inc()
        seconds = self.clock.monotonic() - job.request.arrived_at
        REQUEST_SECONDS.labels(state.value).observe(seconds, job.context.run(exemplar))
