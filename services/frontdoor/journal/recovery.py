"""Recover the unfinished requests of an earlier frontdoor, as jobs and as an event for the dataplane."""

import asyncio
import logging
import random
from dataclasses import replace

from google.protobuf.message import DecodeError

from pentimento.api.frontdoor.v1 import journal_pb2 as pb
from pentimento.api.generation.v1 import generation_pb2
from pentimento.dataplane.events import Recovered, RecoveredRequest
from pentimento.domain.clock import Clock
from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError
from pentimento.domain.fleet import Plan, StartThreshold
from pentimento.domain.generation import Route
from pentimento.domain.image_request import ResolvedRequest, StartImage
from pentimento.domain.jobs import RequestState
from pentimento.domain.reasons import Reason
from pentimento.policies.adapter_needs import needs_of
from pentimento.policies.plan.entry import NOISE, Stage
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import JournalledRequest
from pentimento.wire.codec import decode, encode, from_bytes, to_bytes
from services.frontdoor.answers.audience import Audience
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.requests.jobs import ClientRequest, Job, Jobs, RoutedStage
from services.frontdoor.routing.starts import kind_of, stages_admitted_to, work_left

# The format of a body. Format 0, a public request, is no longer read.
JOURNALLED_REQUEST = 1


def resolved_to_bytes(resolved: ResolvedRequest) -> bytes:
    return to_bytes(resolved, pb.JournalledRequest)


def resolved_from_bytes(data: bytes, body_format: int) -> ResolvedRequest:
    """Return the request of a body. Raises Internal UNREADABLE_REQUEST unless all of the body is understood."""
    if body_format != JOURNALLED_REQUEST:
        raise unreadable()
    try:
        message = pb.JournalledRequest.FromString(data)
        resolved = decode(message, ResolvedRequest)
    except (DecodeError, InvalidArgument) as error:
        raise unreadable() from error
    # A field unknown to this version is missing from the message that it encodes.
    if encode(resolved, pb.JournalledRequest) != message:
        raise unreadable()
    return resolved


def start_image_to_bytes(handed: StartImage) -> bytes:
    """Return the bytes of the image that an attempt started from."""
    return to_bytes(handed, pb.StartImage)


def start_image_from_bytes(data: bytes) -> StartImage:
    """Return the image that `start_image_to_bytes` encoded. Raises Internal UNREADABLE_REQUEST for other bytes."""
    try:
        return from_bytes(data, StartImage, pb.StartImage)
    except InvalidArgument as error:
        raise unreadable() from error


def unreadable() -> Internal:
    """Return the error of a request that another version accepted and this one does not understand."""
    message = "this version cannot read the journalled request; it did not run"
    return Internal(Reason.UNREADABLE_REQUEST, message)


logger = logging.getLogger(__name__)


async def recover(
    journal: Journal, jobs: Jobs, inputs: Inputs, clock: Clock, default_deadline_s: float, plan: Plan | None = None
) -> Recovered:
    """Add a job without listeners for every unfinished request that is understood, and end the others. `plan` is the
    one in force."""
    understood = []
    for record in await asyncio.wrap_future(journal.unfinished()):
        try:
            job = _job_of(record, clock, _passed_s(record, journal, clock), default_deadline_s, plan)
            understood.append((job, record))
        except PentimentoError:
            await _refuse(journal, record.request.request_id)
    # No await until the dataplane receives these jobs: a cancel of a request unknown to it would be lost.
    for job, _ in understood:
        jobs.add(job)
        inputs.adopt(job.request.tenant, job.request.request_id, job.request.resolved)
    return Recovered(tuple(_recovered(job, record) for job, record in understood))


async def _refuse(journal: Journal, request_id: str) -> None:
    """Fail a request that cannot be read, rather than run it differently from its caller's settings."""
    error = unreadable()
    logger.error("an accepted request cannot be read", extra={"request": request_id})
    await asyncio.wrap_future(journal.finish(request_id, RequestState.FAILED, error.reason, error.message))


def _recovered(job: Job, record: JournalledRequest) -> RecoveredRequest:
    request, newest, stage = job.request, record.newest_attempt, record.cascade_stage
    route = job.routed[stage].journalled if stage in job.routed else None
    # The stage was routed but not attempted: the image of its predecessor is lost, and no attempt runs.
    tried = newest is not None and newest.cascade_stage == stage
    return RecoveredRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        pool=_pool_of(job, stage, route),
        work=work_left(request.resolved, route.start) if route else request.resolved.cost,
        deadline=request.deadline,
        route_pinned=route is not None,
        model_digest=route.model_digest if route else "",
        attempt_number=newest.attempt.attempt_number if newest else 0,
        fencing_token=newest.attempt.fencing_token if newest else 0,
        worker_id=newest.worker_id if newest and tried else "",
        cascade=tuple(stage.pool for stage in request.stages),
        cascade_stage=stage,
        cascade_name=request.stages[0].cascade,
        start=kind_of(route.start) if route else NOISE,
        needs=needs_of(request.resolved.spec),
        has_inputs=bool(request.resolved.inputs),
        planned=request.resolved.admitted is not None and request.resolved.admitted.planned,
    )


def _pool_of(job: Job, number: int, route: Route | None) -> str:
    """Return the pool of the stage, unless the route leads to another model than the stage's."""
    stages = job.request.stages
    if route is None:
        return stages[number].pool
    return stages[number].pool if number < len(stages) and stages[number].model == route.model else route.model


def _stages_of(resolved: ResolvedRequest, route: Route | None) -> tuple[Stage, ...]:
    """Return the stages of the request's route, or before it has one the stages that it was admitted to."""
    model = route.model if route is not None else resolved.spec.model
    admitted = stages_admitted_to(resolved.admitted) if resolved.admitted is not None else ()
    if route is None:
        return admitted or (Stage(model, model),)
    # A route without stages uses one model, which may have several pools.
    own = admitted if [stage.model for stage in admitted] == [model] else (Stage(model, model),)
    return _routed_stages(route) or own


def _routed_stages(route: Route) -> tuple[Stage, ...]:
    start = kind_of(route.start)
    return tuple(
        Stage(
            stage.pool or stage.model,
            stage.model,
            route.cascade,
            stage.discriminator,
            (StartThreshold(start, stage.confidence_threshold),) if stage.confidence_threshold else (),
        )
        for stage in route.stages
    )


def _as_planned(stage: Stage, plan: Plan | None) -> Stage:
    """Return the stage with the values that the journal lacks: the plan's discriminator, and the share of the next
    stage's steps that its image saves."""
    cascades = plan.cascades if plan is not None else ()
    of_cascade = (one for known in cascades if known.cascade == stage.cascade for one in known.stages)
    planned = next((one for one in of_cascade if one.pool == stage.pool), None)
    if planned is None:
        return stage
    return replace(stage, reuse_share=planned.reuse_share, discriminator_digest=planned.discriminator_digest)


def _passed_s(record: JournalledRequest, journal: Journal, clock: Clock) -> float:
    """Return the seconds since the request was accepted, by the journal's own time, or by the wall clock for rows of
    earlier versions. A clock that was set back gives no request more time than it had at first."""
    counted_s, accepted_s = journal.time.counted_s, record.accepted_counted_s
    if counted_s is None or accepted_s is None:
        return max(clock.wall() - record.request.accepted_at, 0.0)
    return max(counted_s - accepted_s, 0.0)


def _job_of(
    record: JournalledRequest, clock: Clock, passed_s: float, default_deadline_s: float, plan: Plan | None
) -> Job:
    accepted, now = record.request, clock.monotonic()
    deadline_at = accepted.deadline_at or accepted.accepted_at + default_deadline_s
    route: Route | None = from_bytes(record.route, Route, generation_pb2.Route) if record.route is not None else None
    resolved = resolved_from_bytes(accepted.body, accepted.body_format)
    request = ClientRequest(
        request_id=accepted.request_id,
        tenant=accepted.tenant,
        resolved=resolved,
        stages=tuple(_as_planned(stage, plan) for stage in _stages_of(resolved, route)),
        arrived_at=now - passed_s,
        accepted_at=accepted.accepted_at,
        deadline=now + deadline_at - accepted.accepted_at - passed_s,
        deadline_at=deadline_at,
        draw=random.random(),
        idempotency_key=accepted.idempotency_key,
        body_hash=accepted.body_hash,
        # The journal holds the webhook of its end.
        webhook_url="" if accepted.detached else None,
    )
    job = Job(request, Audience(request.request_id, route), notes=["recovered by a newer frontdoor"])
    if route is not None:
        newest = record.newest_attempt
        handed = start_image_from_bytes(newest.handed_picture) if newest is not None and newest.handed_picture else None
        job.routed[record.cascade_stage] = RoutedStage((), now, route, handed=handed)
    return job
