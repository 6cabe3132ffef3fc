"""Journal the results and ends of accepted requests; repeat each write until the journal answers."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from pentimento.dataplane.effects import CommitResult, PersistEnd
from pentimento.dataplane.events import CommitFailed, EndPersisted, ResultCommitted
from pentimento.domain.clock import Backoff
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.generation import Attempt
from pentimento.domain.image_request import Completed
from pentimento.stores.errors import StoreFull
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import ResultRecord
from services.frontdoor.answers.audience import group_of, ids_of_images
from services.frontdoor.answers.delivery import FREES_KEY, STATE_OF
from services.frontdoor.identity import Identity
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal.retention import Retention
from services.frontdoor.metrics import DEGRADED
from services.frontdoor.objects.results import Results
from services.frontdoor.requests.jobs import Execution, Job, Jobs
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.safety import SafetyGate

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRIES = Backoff(first_s=0.05, max_s=2.0)


async def until_durable(write: Callable[[], "Future[T]"], retries: Backoff = RETRIES) -> T:
    """Repeat the write until the journal answers: nothing may follow before."""
    delays_s = retries.delays_s()
    while True:
        try:
            return await asyncio.wrap_future(write())
        except PentimentoError as error:
            logger.error("the journal does not answer; retrying", extra={"reason": error.reason})
        await asyncio.sleep(next(delays_s))


@dataclass(frozen=True)
class Commits:
    """Commit one result or end of each request, by compare-and-set of its fencing token."""

    interpreter: Interpreter
    journal: Journal
    identity: Identity
    jobs: Jobs
    safety: SafetyGate
    results: Results
    pins: Pins
    retention: Retention

    def commit_result(self, effect: CommitResult) -> None:
        job = self.jobs.get(effect.request_id)
        execution = job.executions[effect.picture_token]
        request = job.request
        attempt = self.identity.attempt(request.request_id, request.tenant, effect.attempt_number, effect.fencing_token)
        if effect.degraded:
            DEGRADED.labels(effect.degraded).inc()
            job.note(f"degraded: {effect.degraded}")
        self.jobs.spawn(job, self._commit(job, attempt, execution), effect)

    def persist_end(self, effect: PersistEnd) -> None:
        job = self.jobs.get(effect.request_id)
        self.jobs.spawn(job, self._end(job, effect), effect)

    async def _commit(self, job: Job, attempt: Attempt, execution: Execution) -> None:
        """Store the image of `execution` and journal it under the newest fencing token, which `attempt` holds."""
        await self.pins.keep(job, execution)
        try:
            record, completed = await self._until_stored(job, execution)
        except PentimentoError as error:
            job.failure = error
            failed = CommitFailed(attempt.request_id, attempt.fencing_token, error.reason, error.message)
            self.interpreter.submit(failed)
            return
        won = await until_durable(lambda: self.journal.commit_result(attempt, record))
        self.results.uncommitted.discard(record.image.key)
        if won:
            execution.completed = completed
            self.retention.keep(attempt.tenant, record.image.size_bytes)
        else:
            # No row names or will name it.
            self.jobs.spawn_background(self.results.keeper.delete(record.image.key), "discard an image")
        self.interpreter.submit(ResultCommitted(attempt.request_id, attempt.fencing_token, won))

    async def _until_stored(self, job: Job, execution: Execution) -> tuple[ResultRecord, Completed]:
        """Check and store the image, with retries until the deadline: classifiers and a journal may return and a full
        disk may get room, and the image costs too much to drop it immediately."""
        assert execution.result is not None
        delays_s = RETRIES.delays_s()
        while True:
            delay_s = next(delays_s)
            try:
                execution.image_verdict = await self.safety.check_image(execution.result.image)
                return await self.results.store(job, execution)
            except (StoreFull, Unavailable) as error:
                if self.interpreter.clock.monotonic() + delay_s > job.request.deadline:
                    raise
                logger.error("the image cannot be stored; retrying", extra={"reason": error.reason})
            await asyncio.sleep(delay_s)

    async def _end(self, job: Job, effect: PersistEnd) -> None:
        end = (STATE_OF[effect.end], effect.reason, effect.message, self.identity.epoch)
        request_id, tenant = effect.request_id, job.request.tenant
        free_keys_of = (ids_of_images(group_of(request_id)) or (request_id,)) if effect.reason in FREES_KEY else ()
        won = await until_durable(lambda: self.journal.finish(request_id, *end, free_keys_of))
        if won:
            self.retention.keep(tenant, 0)
            if job.request.resolved.pin_ms:
                self.jobs.spawn_background(self.pins.let_go(tenant, request_id), "unpin a request without an image")
        self.interpreter.submit(EndPersisted(request_id, won))
