"""Perform the effects that must be durable before the next step: accepted, attempt, result, end.

Each effect is answered with its event. Writes for an accepted request are repeated until the journal answers.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from pentimento.api.generation.v1 import generation_pb2
from pentimento.dataplane.effects import CommitResult, PersistAccepted, PersistAttempt, PersistEnd
from pentimento.dataplane.events import (
    AcceptDropped,
    AcceptPersisted,
    AttemptPersisted,
    CommitFailed,
    EndPersisted,
    ResultCommitted,
)
from pentimento.domain.clock import Backoff
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.generation import Attempt, Route
from pentimento.domain.image_request import Completed
from pentimento.stores.errors import StoreFull, StoreUnavailable, UnansweredCommit
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, AcceptKind, AcceptOutcome, ResultRecord
from pentimento.stores.ledger.journal.webhooks import AskedWebhook
from pentimento.wire.codec import from_bytes, to_bytes
from services.frontdoor.answers.audience import group_of, ids_of_images
from services.frontdoor.answers.delivery import FREES_KEY, STATE_OF, drop_job, hand_over, key_reused
from services.frontdoor.identity import Identity
from services.frontdoor.journal.recovery import JOURNALLED_REQUEST, resolved_to_bytes, start_image_to_bytes
from services.frontdoor.metrics import DEGRADED, QUEUE_SECONDS
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import ClientRequest, Execution, Job
from services.frontdoor.routing.cache_writes import reserve_entries
from services.frontdoor.routing.light_starts import start_image_of
from services.frontdoor.routing.starts import admitted_stages

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRIES = Backoff(first_s=0.05, max_s=2.0)


def persist_accepted(parts: FrontdoorParts, effect: PersistAccepted) -> None:
    job = parts.jobs.get(effect.request_id)
    parts.shadows.make_way()
    parts.jobs.spawn(job, _accept(parts, job), effect)


def persist_attempt(parts: FrontdoorParts, effect: PersistAttempt) -> None:
    job = parts.jobs.get(effect.request_id)
    attempt = parts.identity.attempt(
        job.request.request_id, job.request.tenant, effect.attempt_number, effect.fencing_token
    )
    parts.shadows.make_way(effect.worker_id)
    routed = job.routed[effect.cascade_stage]
    execution = job.execution(attempt, effect.worker_id, effect.cascade_stage, effect.option, parts.catalogue.known)
    if effect.option and routed.journalled is None:
        # A pool without its own work took the request; its route is that pool's from here on.
        job.audience.routed(execution.route)
    now = execution.bound_at = parts.clock.monotonic()
    job.time_stage("queue", routed.queued_at, now)
    QUEUE_SECONDS.observe(now - routed.queued_at)
    parts.jobs.spawn(job, _start_attempt(parts, job, execution), effect)


def commit_result(parts: FrontdoorParts, effect: CommitResult) -> None:
    job = parts.jobs.get(effect.request_id)
    execution = job.executions[effect.picture_token]
    attempt = parts.identity.attempt(
        job.request.request_id, job.request.tenant, effect.attempt_number, effect.fencing_token
    )
    if effect.degraded:
        DEGRADED.labels(effect.degraded).inc()
        job.note(f"degraded: {effect.degraded}")
    parts.jobs.spawn(job, _commit(parts, job, attempt, execution), effect)


def persist_end(parts: FrontdoorParts, effect: PersistEnd) -> None:
    job = parts.jobs.get(effect.request_id)
    parts.jobs.spawn(job, _end(parts, job, effect), effect)


async def _accept(parts: FrontdoorParts, job: Job) -> None:
    """Journal a new request. Before that succeeds nothing is promised, so an error goes straight to the client."""
    request = job.request
    try:
        await parts.inputs.store(job)
        outcome = await _outcome_of_accepting(parts, request)
    except PentimentoError as error:
        parts.acceptance.fail(error)
        _refuse(parts, job, error)
        return
    parts.acceptance.accept()
    if outcome.kind is AcceptKind.NEW or outcome.request_id == request.request_id:
        job.time_stage("accept", request.arrived_at, parts.clock.monotonic())
        parts.submit(AcceptPersisted(request.request_id))
    elif outcome.kind is AcceptKind.EXISTING:
        parts.submit(AcceptDropped(request.request_id))
        hand_over(parts, job, outcome.request_id)
    else:
        _refuse(parts, job, key_reused())


async def _outcome_of_accepting(parts: FrontdoorParts, request: ClientRequest) -> AcceptOutcome:
    """Return the journal's answer. Ask again if the row may already be written: otherwise the request would never
    run."""
    may_be_in, delays_s = False, _RETRIES.delays_s()
    while True:
        try:
            accepting = parts.journal.accept(_row_of(request, parts.identity), _webhook_of(request))
            return await asyncio.wrap_future(accepting)
        except StoreUnavailable as error:
            may_be_in = may_be_in or isinstance(error, UnansweredCommit)
            if not may_be_in:
                raise
            logger.error("it is unknown if a request was accepted; retrying", extra={"reason": error.reason})
        await asyncio.sleep(next(delays_s))


def _row_of(request: ClientRequest, identity: Identity) -> AcceptedRequest:
    admitted = admitted_stages(request.stages, request.resolved.spec.model)
    return AcceptedRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        body=resolved_to_bytes(replace(request.resolved, admitted=admitted)),
        body_format=JOURNALLED_REQUEST,
        body_hash=request.body_hash,
        accepted_at=request.accepted_at,
        idempotency_key=request.idempotency_key,
        deadline_at=request.deadline_at,
        frontdoor_id=identity.frontdoor_id,
        frontdoor_epoch=identity.epoch,
        detached=request.is_job,
    )


def _webhook_of(request: ClientRequest) -> AskedWebhook | None:
    """Return the webhook of the request's end. Of several images only the first has it, for the whole call."""
    url, group = request.webhook_url, group_of(request.request_id)
    if not url or not group:
        return AskedWebhook(url) if url else None
    ids = ids_of_images(group)
    return AskedWebhook(url, group, max(ids), len(ids)) if request.request_id == ids[0] else None


def _refuse(parts: FrontdoorParts, job: Job, error: PentimentoError) -> None:
    parts.submit(AcceptDropped(job.request.request_id))
    drop_job(parts, job, error)


async def _start_attempt(parts: FrontdoorParts, job: Job, execution: Execution) -> None:
    """Journal the attempt while the cache's grant is requested."""
    attempt = execution.attempt
    reserving = asyncio.ensure_future(reserve_entries(parts, job, execution)) if parts.gateway is not None else None
    won = await _journal_attempt(parts.journal, job, execution)
    execution.grant = await reserving if reserving is not None else None
    job.time_stage("attempt", execution.bound_at, parts.clock.monotonic())
    parts.submit(AttemptPersisted(attempt.request_id, attempt.fencing_token, won))


async def _journal_attempt(journal: Journal, job: Job, execution: Execution) -> bool:
    """Return whether the attempt may run. A stage's first attempt is journalled together with the route, which is final
    from then on."""
    attempt, worker_id, stage = execution.attempt, execution.worker_id, execution.stage
    routed, handed = job.routed[stage], start_image_of(execution.resolved)
    picture = start_image_to_bytes(handed) if handed is not None else b""
    if routed.journalled:
        return await _until_durable(lambda: journal.start_attempt(attempt, worker_id, stage, picture))
    ours = to_bytes(execution.route, generation_pb2.Route)
    pinned, won = await _until_durable(lambda: journal.route_and_start(attempt, worker_id, ours, stage, picture))
    execution.route = routed.journalled = (
        execution.route if pinned == ours else from_bytes(pinned, Route, generation_pb2.Route)
    )
    return won


async def _commit(parts: FrontdoorParts, job: Job, attempt: Attempt, execution: Execution) -> None:
    """Store the image of `execution` and journal it under the newest fencing token, which `attempt` holds."""
    await parts.pins.keep(job, execution)
    try:
        record, completed = await _until_stored(parts, job, execution)
    except PentimentoError as error:
        job.failure = error
        parts.submit(CommitFailed(attempt.request_id, attempt.fencing_token, error.reason, error.message))
        return
    won = await _until_durable(lambda: parts.journal.commit_result(attempt, record))
    parts.results.uncommitted.discard(record.image.key)
    if won:
        execution.completed = completed
        parts.retention.keep(attempt.tenant, record.image.size_bytes)
    else:
        parts.jobs.spawn_background(parts.results.discard(record.image), "discard an image")
    parts.submit(ResultCommitted(attempt.request_id, attempt.fencing_token, won))


async def _until_stored(parts: FrontdoorParts, job: Job, execution: Execution) -> tuple[ResultRecord, Completed]:
    """Check and store the image, with retries until the deadline: classifiers and a journal may return and a full disk
    may get room, and the image costs too much to drop it immediately."""
    assert execution.result is not None
    delays_s = _RETRIES.delays_s()
    while True:
        delay_s = next(delays_s)
        try:
            await parts.safety.check_image(execution.result.image)
            return await parts.results.store(job, execution)
        except (StoreFull, Unavailable) as error:
            if parts.clock.monotonic() + delay_s > job.request.deadline:
                raise
            logger.error("the image cannot be stored; retrying", extra={"reason": error.reason})
        await asyncio.sleep(delay_s)


async def _end(parts: FrontdoorParts, job: Job, effect: PersistEnd) -> None:
    end = (STATE_OF[effect.end], effect.reason, effect.message, parts.identity.epoch)
    request_id = effect.request_id
    free_keys_of = (ids_of_images(group_of(request_id)) or (request_id,)) if effect.reason in FREES_KEY else ()
    won = await _until_durable(lambda: parts.journal.finish(request_id, *end, free_keys_of))
    if won:
        parts.retention.keep(job.request.tenant, 0)
        if job.request.resolved.pin_ms:
            letting_go = parts.pins.let_go(job.request.tenant, job.request.request_id)
            parts.jobs.spawn_background(letting_go, "unpin a request without an image")
    parts.submit(EndPersisted(effect.request_id, won))


async def _until_durable(write: Callable[[], "Future[T]"]) -> T:
    """Repeat the write until the journal answers: nothing may follow before."""
    delays_s = _RETRIES.delays_s()
    while True:
        try:
            return await asyncio.wrap_future(write())
        except PentimentoError as error:
            logger.error("the journal does not answer; retrying", extra={"reason": error.reason})
        await asyncio.sleep(next(delays_s))
