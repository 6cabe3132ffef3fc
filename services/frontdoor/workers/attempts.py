"""Perform the effects that run attempts on workers: read their streams and classify their failures."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from pentimento.clients.worker import WorkerClient
from pentimento.dataplane.effects import Attach, Execute, ReservePair, StopAttempt, ThinAttempt
from pentimento.dataplane.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptProgressed,
    AttemptStarted,
    AttemptYielded,
    FailureKind,
)
from pentimento.domain.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.execution import AttemptResult, ExecuteEvent, PlaceYielded, Started, StepProgress
from pentimento.domain.generation import StageTiming
from pentimento.domain.image_request import Progress
from pentimento.domain.reasons import Reason
from pentimento.domain.replay import taken_of
from pentimento.domain.thinned_steps import taken_count
from pentimento.stores.objects.store import digest_of
from services.frontdoor.answers.audience import PROGRESS_INTERVAL_S, images_of_call
from services.frontdoor.answers.delivery import as_asked
from services.frontdoor.metrics import STARTS, THINNED_STEPS
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import Execution, Job
from services.frontdoor.routing.cache_writes import report_bad_donor, report_start
from services.frontdoor.routing.light_starts import as_handed
from services.frontdoor.routing.starts import kind_of, steps_saved, work_left

logger = logging.getLogger(__name__)

Stream = AsyncIterator[ExecuteEvent]

STOP_TIMEOUT_S = 2.0
# An input or a ControlNet is missing, not the worker.
NOT_THE_WORKERS = frozenset({Reason.INPUT_UNAVAILABLE, Reason.CONTROLNET_LOST})
# The file and its entry stay the same, so that a retry on any worker fails too.
OF_THE_LORA = frozenset(
    {
        Reason.BAD_LORA,
        Reason.LORA_MISMATCH,
        Reason.UNSIGNED_ENTRY,
        Reason.UNKNOWN_SIGNING_KEY,
        Reason.BAD_SIGNATURE,
        Reason.STALE_ENTRY,
    }
)
ON_ITS_WAY_OUT = frozenset({Reason.DRAINING, Reason.WORKER_STOPPED})


def execute(parts: FrontdoorParts, effect: Execute) -> None:
    """Answer Execute with AttemptFinished or AttemptFailed, unless the worker is lost first."""
    job = parts.jobs.get(effect.request_id)
    execution = job.executions[effect.fencing_token]
    _run(parts, effect, job, execution, lambda client: _execute(parts, client, job, execution, effect))


def attach(parts: FrontdoorParts, effect: Attach) -> None:
    """Answer Attach with AttemptFinished or AttemptFailed, as `execute` does."""
    job = parts.jobs.get(effect.request_id)
    identity, token = parts.identity, effect.fencing_token
    attempt = identity.attempt(job.request.request_id, job.request.tenant, effect.attempt_number, token)
    execution = job.execution(attempt, effect.worker_id, effect.cascade_stage, 0, parts.catalogue.known)
    if handed := job.routed[effect.cascade_stage].handed:
        execution.resolved = as_handed(execution.resolved, handed)

    async def open_stream(client: WorkerClient) -> Stream:
        return client.attach(effect.request_id, token, identity.frontdoor_id, identity.epoch, identity.journal_id)

    _run(parts, effect, job, execution, open_stream)


def reserve_pair(parts: FrontdoorParts, effect: ReservePair) -> None:
    execution = parts.jobs.get(effect.request_id).executions[effect.fencing_token]
    parts.shadows.make_way(effect.peer_id)
    execution.peer = (effect.peer_id, parts.links.address_of(effect.peer_id))


def stop_attempt(parts: FrontdoorParts, effect: StopAttempt) -> None:
    link = parts.links.of_worker(effect.worker_id)
    if link is not None:
        call = link.client.cancel(effect.request_id, effect.fencing_token, STOP_TIMEOUT_S)
        parts.jobs.spawn_background(_told(effect.worker_id, call), effect)


def thin_attempt(parts: FrontdoorParts, effect: ThinAttempt) -> None:
    execution = parts.jobs.get(effect.request_id).executions[effect.fencing_token]
    execution.asked_midway = True
    link = parts.links.of_worker(effect.worker_id)
    if link is not None:
        call = link.client.thin(effect.request_id, effect.fencing_token, effect.thinned_steps, STOP_TIMEOUT_S)
        parts.jobs.spawn_background(_told(effect.worker_id, call), effect)


def _run(
    parts: FrontdoorParts,
    effect: Execute | Attach,
    job: Job,
    execution: Execution,
    open_stream: Callable[[WorkerClient], Awaitable[Stream]],
) -> None:
    link = parts.links.of_worker(execution.worker_id)
    attempt = execution.attempt
    if link is None:
        parts.submit(AttemptFailed(attempt.request_id, attempt.fencing_token, FailureKind.WORKER_LOST))
        return
    execution.sent_at = parts.clock.monotonic()
    run = parts.jobs.spawn(job, _follow(parts, job, execution, lambda: open_stream(link.client)), effect)
    link.runs.add(run)
    run.add_done_callback(link.runs.discard)


async def _execute(
    parts: FrontdoorParts, client: WorkerClient, job: Job, execution: Execution, effect: Execute
) -> Stream:
    """Start the attempt. Input images are loaded only now, as only running attempts hold them in memory."""
    spec = await parts.inputs.load(job, execution.resolved)
    await parts.shadows.left(execution.worker_id)
    if effect.thinned_steps:
        # Skipped steps save more, and the loss of both together was not measured.
        execution.route = replace(execution.route, thinned_steps=effect.thinned_steps, full_steps=())
        THINNED_STEPS.inc(_left_out(execution))
    offer = parts.thinning.offer(execution.resolved, execution.route)
    # A client waits for progress, or may attach later; or the dataplane may skip steps by it.
    is_followed = job.audience.hears_progress() or job.request.is_job
    may_thin_midway = parts.dataplane.state.thins and bool(offer.options) and not effect.thinned_steps
    remaining_ms = max(int((effect.deadline - parts.clock.monotonic()) * 1000), 1)
    return client.execute(
        execution.attempt,
        spec,
        execution.route,
        effect.worker_generation,
        deadline_remaining_ms=remaining_ms,
        preview_interval_steps=execution.resolved.preview_interval_steps,
        cache_grant=execution.grant,
        image_format=execution.resolved.format.value,
        encoding_quality=execution.resolved.encoding_quality,
        peer=execution.peer,
        controlnet_endpoints=parts.adapters.endpoints(spec.controlnets),
        journal_id=parts.identity.journal_id,
        cache_thinned_picture=parts.thinning.thinned_is_cached(offer),
        omit_progress=not (is_followed or may_thin_midway),
        progress_interval_ms=round(1000 * PROGRESS_INTERVAL_S * images_of_call(job.request.request_id)),
    )


def _left_out(execution: Execution) -> int:
    steps = execution.resolved.spec.num_inference_steps
    return steps - taken_count(execution.route.thinned_steps, steps)


async def _follow(
    parts: FrontdoorParts, job: Job, execution: Execution, open_stream: Callable[[], Awaitable[Stream]]
) -> None:
    """Open and read the stream; opened here, a task that is cancelled before it begins leaves no stream open."""
    request_id, token = execution.attempt.request_id, execution.attempt.fencing_token
    try:
        async for event in await open_stream():
            if isinstance(event, AttemptResult):
                _take_result(parts, job, execution, event)
                parts.submit(AttemptFinished(request_id, token, _account_start(parts, job, execution, event)))
            else:
                _pass_on(parts, job, execution, event)
        if execution.result is None:
            raise Unavailable("STREAM_ENDED", "the worker ended the stream without an image")
    except PentimentoError as error:
        if execution.result is not None:
            # The image has arrived: the stream's end changes nothing.
            return
        job.failure = as_asked(error)
        # In case it is queued again.
        job.routed[execution.stage].queued_at = parts.clock.monotonic()
        parts.submit(AttemptFailed(request_id, token, failure_kind(error), error.reason, job.failure.message))
    except asyncio.CancelledError:
        # The link to the worker was lost; if the dataplane did not know, the request runs elsewhere.
        parts.submit(AttemptFailed(request_id, token, FailureKind.WORKER_LOST))
        raise


def _pass_on(
    parts: FrontdoorParts, job: Job, execution: Execution, event: Started | StepProgress | PlaceYielded
) -> None:
    attempt = execution.attempt
    match event:
        case Started():
            parts.submit(AttemptStarted(attempt.request_id, attempt.fencing_token))
        case PlaceYielded():
            parts.submit(AttemptYielded(attempt.request_id, attempt.fencing_token))
        case StepProgress():
            if parts.dataplane.state.thins:
                parts.submit(AttemptProgressed(attempt.request_id, attempt.fencing_token, event.step))
            job.audience.tell(_progress_of(execution, event))


def _progress_of(execution: Execution, event: StepProgress) -> Progress:
    spec, route = execution.resolved.spec, execution.route
    return Progress(
        event.step,
        event.step_count,
        event.preview,
        execution.attempt.attempt_number,
        width_px=spec.width_px,
        height_px=spec.height_px,
        saved_steps=steps_saved(route.start) + _left_out(execution),
    )


def _take_result(parts: FrontdoorParts, job: Job, execution: Execution, result: AttemptResult) -> None:
    """Store the result. Raises Internal for a corrupt image or a result of another attempt."""
    theirs, ours = result.attempt, execution.attempt
    if (theirs.request_id, theirs.fencing_token) != (ours.request_id, ours.fencing_token):
        raise Internal("RESULT_MISMATCH", "the worker answered with the result of another attempt")
    if digest_of(result.image) != result.image_digest:
        raise Internal("RESULT_CORRUPT", "the image does not match its digest")
    execution.result = result
    parts.pipelining.learn(execution.resolved.spec, result.residual_wait_share)
    if result.bad_donor_reason:
        report_bad_donor(parts, execution.route, result.bad_donor_reason)
    time_attempt(job, execution, result, parts.clock.monotonic())


def _account_start(parts: FrontdoorParts, job: Job, execution: Execution, result: AttemptResult) -> float:
    """Count the image's actual start and report it to the gateway. Return its work in pixel steps if that differs from
    the routed work, else 0."""
    route, resolved = execution.route, execution.resolved
    taken = taken_of(route.start, result.steps_saved)
    passed_over = taken != route.start
    STARTS.labels("passed_over" if passed_over else kind_of(taken)).inc()
    parts.painted.count(kind_of(taken), result.steps_run, result.steps_saved)
    report_start(parts, route, not passed_over)
    if not passed_over:
        return _work_midway(execution, result)
    routed = job.routed[execution.stage]
    if routed.counted is not None:
        parts.starts.correct(*routed.counted)
        # Another attempt of the same stage is still the same request.
        routed.counted = None
    return work_left(resolved, taken)


def _work_midway(execution: Execution, result: AttemptResult) -> float:
    """Return the actual work, in pixel steps, of an attempt asked to skip steps while it ran; 0 for others."""
    if not execution.asked_midway:
        return 0.0
    spec = execution.resolved.spec
    if result.thinned_steps:
        THINNED_STEPS.inc(spec.num_inference_steps - taken_count(result.thinned_steps, spec.num_inference_steps))
    return float(spec.width_px * spec.height_px * max(result.steps_run, 1))


async def _told(worker_id: str, call: Awaitable[object]) -> None:
    """Await a call about an attempt; a worker that does not answer is lost soon, and its attempts with it."""
    try:
        await call
    except PentimentoError as error:
        logger.debug("an attempt was not changed", extra={"worker": worker_id, "reason": error.reason})


def time_attempt(job: Job, execution: Execution, result: AttemptResult, now: float) -> None:
    """Note the attempt's stages. The worker's clock starts when the attempt reaches it, at an unknown time: the
    remaining time is split equally between sending and receiving."""
    worker_s = max((timing.start_ms + timing.duration_ms for timing in result.timings), default=0.0) / 1000
    way_s = max(now - execution.sent_at - worker_s, 0.0) / 2
    reached_at = execution.sent_at + way_s
    begin_ms = (reached_at - job.request.arrived_at) * 1000
    job.time_stage("execute", execution.sent_at, now)
    job.time_stage("send", execution.sent_at, reached_at)
    job.timings += [
        StageTiming(f"worker.{timing.stage}", begin_ms + timing.start_ms, timing.duration_ms)
        for timing in result.timings
    ]
    job.time_stage("receive", now - way_s, now)


def failure_kind(error: PentimentoError) -> FailureKind:
    """Return the kind of failure that a worker's error is for the request."""
    match error:
        case Unavailable() if error.reason in NOT_THE_WORKERS:
            # A retry would take the place of a request that can run.
            return FailureKind.FATAL
        case Unavailable():
            return FailureKind.NO_CREDIT if error.reason in ON_ITS_WAY_OUT else FailureKind.WORKER_LOST
        case ResourceExhausted() if error.reason == Reason.MESSAGE_TOO_LARGE:
            return FailureKind.FATAL
        case ResourceExhausted():
            return FailureKind.WORKER_LOST if error.reason == Reason.DEVICE_OUT_OF_MEMORY else FailureKind.NO_CREDIT
        case FailedPrecondition():
            return FailureKind.FATAL if error.reason in OF_THE_LORA else FailureKind.NOT_HELD
        case Aborted():
            # The worker knows a newer attempt or frontdoor; the journal decides.
            return FailureKind.NO_CREDIT
        case NotFound() if error.reason == Reason.ATTEMPT_GONE:
            return FailureKind.GONE
        case DeadlineExceeded():
            return FailureKind.DEADLINE
        case Cancelled():
            return FailureKind.STOPPED
        case _:
            return FailureKind.FATAL
