"""What clients are told: accepted, the picture, or why there is none."""

import asyncio
import logging

from pentimento.dataplane.effects import Announce, Deliver, DeliverEnd, DeliverRecorded, Reject
from pentimento.domain.clock import Clock
from pentimento.domain.errors import Internal, PentimentoError, Unavailable
from pentimento.domain.image_request import Accepted, GenerateEvent, Routed
from pentimento.domain.reasons import Reason
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import Journal
from pentimento.wire.generation import route_from_bytes
from services.frontdoor.answers.endings import STATE_OF, end_error, rejection
from services.frontdoor.metrics import REQUEST_SECONDS, REQUESTS
from services.frontdoor.objects.results import Results
from services.frontdoor.requests.jobs import Job, Jobs

logger = logging.getLogger(__name__)

# When a request is under way in another frontdoor: it takes over or ends within about this time.
ELSEWHERE_RETRY_MS = 1000


class Delivery:
    """Speaks to the audiences of jobs, and ends the jobs whose last word is spoken."""

    def __init__(self, journal: Journal, results: Results, jobs: Jobs, clock: Clock) -> None:
        self._journal = journal
        self._results = results
        self._jobs = jobs
        self._clock = clock

    def announce(self, effect: Announce) -> None:
        REQUESTS.labels("accepted").inc()
        self._jobs.get(effect.request_id).audience.accepted()

    def reject(self, effect: Reject) -> None:
        REQUESTS.labels("rejected").inc()
        self.drop(self._jobs.get(effect.request_id), rejection(effect))

    def deliver(self, effect: Deliver) -> None:
        job = self._jobs.get(effect.request_id)
        assert job.completed is not None
        self._count(job, RequestState.COMPLETED)
        job.audience.tell(job.completed)
        self.drop(job, None)

    def deliver_end(self, effect: DeliverEnd) -> None:
        job, state = self._jobs.get(effect.request_id), STATE_OF[effect.end]
        self._count(job, state)
        self.drop(job, end_error(state, effect.reason, effect.message, job.failure, effect.retry_after_ms))

    def deliver_recorded(self, effect: DeliverRecorded) -> None:
        job = self._jobs.get(effect.request_id)
        self._jobs.spawn(job, self._tell_recorded(job, job.request_id), effect)

    def drop(self, job: Job, error: PentimentoError | None) -> None:
        """End the job and its streams."""
        job.audience.end(error)
        self._jobs.end(job)

    def hand_over(self, job: Job, earlier: Job) -> None:
        """The clients of `job` hear what becomes of the earlier request with their idempotency key."""
        for listener in tuple(job.audience.listeners):
            earlier.audience.move_here(listener)
        self._jobs.end(job)

    def replay_recorded(self, job: Job, request_id: str) -> None:
        """The clients of `job` hear how the earlier request with their idempotency key ended."""
        job.audience.tell(Accepted(request_id, replayed=True))
        self._jobs.spawn(job, self._tell_recorded(job, request_id), "replay")

    async def _tell_recorded(self, job: Job, request_id: str) -> None:
        error: PentimentoError | None = None
        try:
            for event in await recorded_events(self._journal, self._results, request_id, job.tenant):
                job.audience.tell(event)
        except PentimentoError as failed:
            error = failed
            job.elsewhere = failed.reason == Reason.REQUEST_ELSEWHERE
        except Exception:
            logger.exception("the journal's answer could not be told")
            error = Internal("UNEXPECTED", "the frontdoor could not tell what became of the request")
        self.drop(job, error)

    def _count(self, job: Job, state: RequestState) -> None:
        REQUESTS.labels(state.value).inc()
        REQUEST_SECONDS.labels(state.value).observe(self._clock.monotonic() - job.arrived_at)


async def recorded_events(journal: Journal, results: Results, request_id: str, tenant: str) -> list[GenerateEvent]:
    """What the journal says of a request that is not under way here. Raises the error that it ended with, or
    Unavailable while it is under way elsewhere."""
    record = await asyncio.wrap_future(journal.get(request_id, tenant))
    if record is None:
        raise Internal("UNEXPECTED", "the request was not accepted because of a defect of the frontdoor")
    if not record.state.terminal:
        message = "the request is under way in another frontdoor"
        raise Unavailable(Reason.REQUEST_ELSEWHERE, message, retry_after_ms=ELSEWHERE_RETRY_MS)
    if record.state is not RequestState.COMPLETED:
        raise end_error(record.state, record.error_reason, record.error_message, None)
    routed: list[GenerateEvent] = [Routed(route_from_bytes(record.route))] if record.route else []
    return [*routed, await results.load(record)]
