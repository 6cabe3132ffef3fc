"""The effects that must be durable before what follows them: accepted, attempt, result, end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from pentimento.dataplane.effects import CommitResult, Drop, End, PersistAccepted, PersistAttempt, PersistEnd
from pentimento.dataplane.events import (
    AcceptDropped,
    AcceptPersisted,
    AttemptPersisted,
    CommitFailed,
    EndPersisted,
    Event,
    ResultCommitted,
)
from pentimento.domain.backoff import Backoff
from pentimento.domain.clock import Clock
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.generation import Attempt, Route
from pentimento.domain.image_request import Completed
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.records import AcceptedRequest, AcceptKind, AcceptOutcome, ResultRecord
from pentimento.wire.generation import route_from_bytes, route_to_bytes
from pentimento.wire.journal import JOURNALLED_REQUEST, resolved_to_bytes
from services.frontdoor.answers.delivery import Delivery
from services.frontdoor.answers.endings import STATE_OF, key_reused
from services.frontdoor.identity import Identity
from services.frontdoor.journal.retention import Retention
from services.frontdoor.metrics import DEGRADED, QUEUE_SECONDS
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.results import Results
from services.frontdoor.requests.jobs import Execution, Job, Jobs
from services.frontdoor.routing.cache_writes import CacheWrites
from services.frontdoor.routing.stages import as_painted_by
from services.frontdoor.workers.catalogue import Catalogue

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRIES = Backoff(first_s=0.05, max_s=2.0)


class Journalling:
    """Answers each effect with its event. Once a request is accepted the journal is asked until it answers."""

    def __init__(
        self,
        journal: Journal,
        results: Results,
        cache_writes: CacheWrites,
        delivery: Delivery,
        jobs: Jobs,
        submit: Callable[[Event], None],
        clock: Clock,
        identity: Identity,
        catalogue: Catalogue,
        inputs: Inputs,
        retention: Retention,
    ) -> None:
        self._journal = journal
        self._results = results
        self._cache_writes = cache_writes
        self._delivery = delivery
        self._jobs = jobs
        self._submit = submit
        self._clock = clock
        self._identity = identity
        self._catalogue = catalogue
        self._inputs = inputs
        self._retention = retention

    def persist_accepted(self, effect: PersistAccepted) -> None:
        job = self._jobs.get(effect.request_id)
        self._jobs.spawn(job, self._accept(job), effect)

    def persist_attempt(self, effect: PersistAttempt) -> None:
        job = self._jobs.get(effect.request_id)
        attempt = self._attempt(job, effect.attempt_number, effect.fencing_token)
        if job.current is None and job.route is not None:
            # Recovered: the worker that takes it has said what it holds.
            job.current = as_painted_by(job.resolved, self._catalogue.find(job.route.model))
        if effect.option and not job.route_journalled:
            # A pool with nothing of its own took it; from here on its route is that pool's.
            job.take(job.options[effect.option])
            job.audience.routed(job.options[effect.option].route)
        execution = job.execution(attempt, effect.worker_id)
        self._time_queue(job, execution)
        self._jobs.spawn(job, self._start_attempt(job, execution), effect)

    def commit_result(self, effect: CommitResult) -> None:
        job = self._jobs.get(effect.request_id)
        execution = job.executions[effect.picture_token]
        attempt = self._attempt(job, effect.attempt_number, effect.fencing_token)
        if effect.degraded:
            DEGRADED.labels(effect.degraded).inc()
            job.note(f"degraded: {effect.degraded}")
        self._jobs.spawn(job, self._commit(job, attempt, execution), effect)

    def persist_end(self, effect: PersistEnd) -> None:
        job = self._jobs.get(effect.request_id)
        self._jobs.spawn(job, self._end(job, effect), effect)

    def drop(self, effect: Drop) -> None:
        self.persist_end(PersistEnd(effect.request_id, End.DROPPED, effect.reason, effect.message))

    def _attempt(self, job: Job, number: int, token: int) -> Attempt:
        identity = self._identity
        return Attempt(job.request_id, number, token, identity.frontdoor_id, identity.epoch, job.tenant)

    async def _accept(self, job: Job) -> None:
        """Until this has succeeded nothing is promised, so an error goes straight to the client."""
        try:
            await self._inputs.store(job)
            outcome = await asyncio.wrap_future(self._journal.accept(self._record(job)))
        except PentimentoError as error:
            self._drop(job, error)
            return
        if outcome.kind is AcceptKind.NEW:
            job.time_stage("accept", job.arrived_at, self._clock.monotonic())
            self._submit(AcceptPersisted(job.request_id))
        elif outcome.kind is AcceptKind.EXISTING:
            self._submit(AcceptDropped(job.request_id))
            self._replay(job, outcome)
        else:
            self._drop(job, key_reused())

    def _record(self, job: Job) -> AcceptedRequest:
        return AcceptedRequest(
            request_id=job.request_id,
            tenant=job.tenant,
            body=resolved_to_bytes(job.resolved),
            body_format=JOURNALLED_REQUEST,
            body_hash=job.body_hash,
            accepted_at=job.accepted_at,
            idempotency_key=job.idempotency_key,
            deadline_at=job.deadline_at,
            frontdoor_id=self._identity.frontdoor_id,
            frontdoor_epoch=self._identity.epoch,
        )

    def _drop(self, job: Job, error: PentimentoError) -> None:
        self._submit(AcceptDropped(job.request_id))
        self._delivery.drop(job, error)

    def _replay(self, job: Job, outcome: AcceptOutcome) -> None:
        """An earlier request holds the key: its stream while it runs, its answer once it has ended."""
        earlier = self._jobs.find(outcome.request_id)
        if earlier is not None:
            self._delivery.hand_over(job, earlier)
        else:
            self._delivery.replay_recorded(job, outcome.request_id)

    async def _start_attempt(self, job: Job, execution: Execution) -> None:
        """Route and attempt share a commit; the cache's grant is asked for meanwhile."""
        assert execution.route is not None
        attempt, stage = execution.attempt, execution.cascade_stage
        reserving = asyncio.ensure_future(self._cache_writes.reserve(job, execution))
        pinning = None if job.route_journalled else self._pin(job, execution.route, stage)
        won = await self._until_durable(lambda: self._journal.start_attempt(attempt, execution.worker_id, stage))
        if pinning is not None:
            execution.route = route_from_bytes(await pinning)
            if job.cascade_stage == stage:
                job.route, job.route_journalled = execution.route, True
        execution.grant = await reserving
        job.time_stage("attempt", execution.bound_at, self._clock.monotonic())
        self._submit(AttemptPersisted(job.request_id, attempt.fencing_token, won))

    def _pin(self, job: Job, route: Route, stage: int) -> Awaitable[bytes]:
        """The route is handed to the journal now, so that what is written next shares its commit."""
        data = route_to_bytes(route)
        first = self._journal.record_route(job.request_id, data, stage)
        return self._until_durable(lambda: self._journal.record_route(job.request_id, data, stage), first)

    def _time_queue(self, job: Job, execution: Execution) -> None:
        now = execution.bound_at = self._clock.monotonic()
        job.time_stage("queue", job.queued_at, now)
        QUEUE_SECONDS.observe(now - job.queued_at)

    async def _commit(self, job: Job, attempt: Attempt, execution: Execution) -> None:
        """`attempt` holds the newest token, `execution` the picture."""
        try:
            record, completed = await self._until_stored(job, execution)
        except PentimentoError as error:
            job.failure = error
            self._submit(CommitFailed(job.request_id, attempt.fencing_token, error.reason, error.message))
            return
        won = await self._until_durable(lambda: self._journal.commit_result(attempt, record))
        self._results.uncommitted.discard(record.image.key)
        if won:
            job.completed = completed
            self._retention.keep(job.tenant, record.image.size_bytes)
        else:
            self._jobs.spawn_background(self._results.discard(record.image), "discard a picture")
        self._submit(ResultCommitted(job.request_id, attempt.fencing_token, won))

    async def _until_stored(self, job: Job, execution: Execution) -> tuple[ResultRecord, Completed]:
        """A journal that is away may come back before the deadline: the picture is too dear to drop it at once."""
        delays_s = _RETRIES.delays_s()
        while True:
            delay_s = next(delays_s)
            try:
                return await self._results.store(job, execution)
            except Unavailable as error:
                if self._clock.monotonic() + delay_s > job.deadline:
                    raise
                logger.error("the picture cannot be stored; trying again", extra={"reason": error.reason})
            await asyncio.sleep(delay_s)

    async def _end(self, job: Job, effect: PersistEnd) -> None:
        end = (STATE_OF[effect.end], effect.reason, effect.message)
        won = await self._until_durable(lambda: self._journal.finish(effect.request_id, *end))
        if won:
            self._retention.keep(job.tenant, 0)
        self._submit(EndPersisted(effect.request_id, won))

    async def _until_durable(self, write: Callable[[], "Future[T]"], first: "Future[T] | None" = None) -> T:
        """Ask again until the journal answers: nothing may follow before it has. `first` is under way already."""
        delays_s = _RETRIES.delays_s()
        answer = first or write()
        while True:
            try:
                return await asyncio.wrap_future(answer)
            except PentimentoError as error:
                logger.error("the journal does not answer; asking again", extra={"reason": error.reason})
            await asyncio.sleep(next(delays_s))
            answer = write()
