"""Begin attempts and run them on workers: journal them, read their streams, change and stop them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from pentimento.api.generation.v1 import generation_pb2
from pentimento.dataplane.effects import Attach, Effect, Execute, PersistAttempt, ReservePair, StopAttempt, ThinAttempt
from pentimento.dataplane.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptPersisted,
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
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.execution import AttemptResult, ExecuteEvent, PlaceYielded, Started, StepProgress
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Progress
from pentimento.domain.reasons import Reason
from pentimento.stores.ledger import Journal
from pentimento.wire.codec import from_bytes, to_bytes
from services.frontdoor.answers.audience import PROGRESS_INTERVAL_S, images_of_call
from services.frontdoor.answers.delivery import as_asked
from services.frontdoor.identity import Identity
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal.commits import until_durable
from services.frontdoor.journal.recovery import start_image_to_bytes
from services.frontdoor.metrics import QUEUE_SECONDS, THINNED_STEPS
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.jobs import Execution, Job, Jobs
from services.frontdoor.routing.cache_writes import CacheWriter
from services.frontdoor.routing.light_starts import as_handed, start_image_of
from services.frontdoor.routing.step_rules import StepRules
from services.frontdoor.workers.attempt_results import AttemptResults, left_out_steps
from services.frontdoor.workers.catalogue import Catalogue
from services.frontdoor.workers.worker_links import WorkerLink, WorkerLinks

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


@dataclass(frozen=True)
class AttemptStreams:
    """Run the attempts that the journal has, over the links to their workers."""

    interpreter: Interpreter
    jobs: Jobs
    links: WorkerLinks
    inputs: Inputs
    rules: StepRules
    shadows: Shadows
    results: AttemptResults

    def execute(self, effect: Execute) -> None:
        """Answer Execute with AttemptFinished or AttemptFailed, unless the worker is lost first."""
        job = self.jobs.get(effect.request_id)
        execution = job.executions[effect.fencing_token]
        self.follow(effect, job, execution, lambda link: self._execute(link, job, execution, effect))

    def reserve_pair(self, effect: ReservePair) -> None:
        self.shadows.make_way()
        self._execution(effect).peer = (effect.peer_id, self.links.address_of(effect.peer_id))

    def stop_attempt(self, effect: StopAttempt) -> None:
        link = self.links.of_worker(effect.worker_id)
        if link is not None:
            call = link.client.cancel(effect.request_id, effect.fencing_token, STOP_TIMEOUT_S)
            self.jobs.spawn_background(_told(effect.worker_id, call), effect)

    def thin_attempt(self, effect: ThinAttempt) -> None:
        self._execution(effect).asked_midway = True
        link = self.links.of_worker(effect.worker_id)
        if link is not None:
            call = link.client.thin(effect.request_id, effect.fencing_token, effect.thinned_steps, STOP_TIMEOUT_S)
            self.jobs.spawn_background(_told(effect.worker_id, call), effect)

    def follow(
        self, effect: Effect, job: Job, execution: Execution, open_stream: Callable[[WorkerLink], Awaitable[Stream]]
    ) -> None:
        """Read the attempt's stream while its worker has a link. `effect` fails if the reading has a defect."""
        link, attempt = self.links.of_worker(execution.worker_id), execution.attempt
        if link is None:
            lost = AttemptFailed(attempt.request_id, attempt.fencing_token, FailureKind.WORKER_LOST)
            self.interpreter.submit(lost)
            return
        execution.sent_at = self.interpreter.clock.monotonic()
        run = self.jobs.spawn(job, self._follow(job, execution, lambda: open_stream(link)), effect)
        link.runs.add(run)
        run.add_done_callback(link.runs.discard)

    def _execution(self, effect: ReservePair | ThinAttempt) -> Execution:
        return self.jobs.get(effect.request_id).executions[effect.fencing_token]

    async def _execute(self, link: WorkerLink, job: Job, execution: Execution, effect: Execute) -> Stream:
        """Start the attempt. Input images are loaded only now, as only running attempts hold them in memory."""
        resolved = execution.resolved
        spec = await self.inputs.load(job, resolved)
        await self.shadows.left(execution.worker_id)
        if effect.thinned_steps:
            # Skipped steps save more, and the loss of both together was not measured.
            execution.route = replace(execution.route, thinned_steps=effect.thinned_steps, full_steps=())
            THINNED_STEPS.inc(left_out_steps(execution))
        thinning = self.rules.thinning
        offer = thinning.offer(resolved, execution.route)
        # A client waits for progress, or may attach later; or the dataplane may skip steps by it.
        is_followed = job.audience.hears_progress() or job.request.is_job
        may_thin_midway = self.interpreter.dataplane.state.thins and bool(offer.options) and not effect.thinned_steps
        remaining_ms = max(int((effect.deadline - self.interpreter.clock.monotonic()) * 1000), 1)
        return link.client.execute(
            execution.attempt,
            spec,
            execution.route,
            effect.worker_generation,
            deadline_remaining_ms=remaining_ms,
            preview_interval_steps=resolved.preview_interval_steps,
            cache_grant=execution.grant,
            image_format=resolved.format.value,
            encoding_quality=resolved.encoding_quality,
            peer=execution.peer,
            controlnet_endpoints=self.rules.adapters.endpoints(spec.controlnets),
            journal_id=link.identity.journal_id,
            cache_thinned_picture=thinning.thinned_is_cached(offer),
            omit_progress=not (is_followed or may_thin_midway),
            progress_interval_ms=round(1000 * PROGRESS_INTERVAL_S * images_of_call(job.request.request_id)),
        )

    async def _follow(self, job: Job, execution: Execution, open_stream: Callable[[], Awaitable[Stream]]) -> None:
        """Open and read the stream; opened here, a task that is cancelled before it begins leaves no stream open."""
        request_id, token = execution.attempt.request_id, execution.attempt.fencing_token
        submit = self.interpreter.submit
        try:
            async for event in await open_stream():
                if isinstance(event, AttemptResult):
                    submit(AttemptFinished(request_id, token, self.results.take(job, execution, event)))
                else:
                    self._pass_on(job, execution, event)
            if execution.result is None:
                raise Unavailable("STREAM_ENDED", "the worker ended the stream without an image")
        except PentimentoError as error:
            if execution.result is not None:
                # The image has arrived: the stream's end changes nothing.
                return
            job.failure = as_asked(error)
            # In case it is queued again.
            job.routed[execution.stage].queued_at = self.interpreter.clock.monotonic()
            submit(AttemptFailed(request_id, token, failure_kind(error), error.reason, job.failure.message))
        except asyncio.CancelledError:
            # The link to the worker was lost; if the dataplane did not know, the request runs elsewhere.
            submit(AttemptFailed(request_id, token, FailureKind.WORKER_LOST))
            raise

    def _pass_on(self, job: Job, execution: Execution, event: Started | StepProgress | PlaceYielded) -> None:
        attempt, submit = execution.attempt, self.interpreter.submit
        match event:
            case Started():
                submit(AttemptStarted(attempt.request_id, attempt.fencing_token))
            case PlaceYielded():
                submit(AttemptYielded(attempt.request_id, attempt.fencing_token))
            case StepProgress():
                if self.interpreter.dataplane.state.thins:
                    submit(AttemptProgressed(attempt.request_id, attempt.fencing_token, event.step))
                job.audience.tell(_progress_of(execution, event))


@dataclass(frozen=True)
class AttemptStarter:
    """Begin attempts under this frontdoor's identity. `cache` is None without a cache."""

    interpreter: Interpreter
    journal: Journal
    identity: Identity
    jobs: Jobs
    catalogue: Catalogue
    cache: CacheWriter | None
    shadows: Shadows
    streams: AttemptStreams

    def persist_attempt(self, effect: PersistAttempt) -> None:
        job = self.jobs.get(effect.request_id)
        self.shadows.make_way()
        routed = job.routed[effect.cascade_stage]
        execution = self._execution(job, effect, effect.option)
        if effect.option and routed.journalled is None:
            # A pool without its own work took the request; its route is that pool's from here on.
            job.audience.routed(execution.route)
        now = execution.bound_at = self.interpreter.clock.monotonic()
        job.time_stage("queue", routed.queued_at, now)
        QUEUE_SECONDS.observe(now - routed.queued_at)
        self.jobs.spawn(job, self._start(job, execution), effect)

    def attach(self, effect: Attach) -> None:
        """Answer Attach with AttemptFinished or AttemptFailed, as `AttemptStreams.execute` does."""
        job, identity = self.jobs.get(effect.request_id), self.identity
        execution = self._execution(job, effect, 0)
        if handed := job.routed[effect.cascade_stage].handed:
            execution.resolved = as_handed(execution.resolved, handed)

        async def open_stream(link: WorkerLink) -> Stream:
            ours = (identity.frontdoor_id, identity.epoch, identity.journal_id)
            return link.client.attach(effect.request_id, effect.fencing_token, *ours)

        self.streams.follow(effect, job, execution, open_stream)

    def _execution(self, job: Job, effect: PersistAttempt | Attach, option: int) -> Execution:
        request, number, token = job.request, effect.attempt_number, effect.fencing_token
        attempt = self.identity.attempt(request.request_id, request.tenant, number, token)
        return job.execution(attempt, effect.worker_id, effect.cascade_stage, option, self.catalogue.known)

    async def _start(self, job: Job, execution: Execution) -> None:
        """Journal the attempt while the cache's grant is requested."""
        attempt = execution.attempt
        reserving = asyncio.ensure_future(self.cache.reserve(job, execution)) if self.cache is not None else None
        won = await self._journal(job, execution)
        execution.grant = await reserving if reserving is not None else None
        job.time_stage("attempt", execution.bound_at, self.interpreter.clock.monotonic())
        self.interpreter.submit(AttemptPersisted(attempt.request_id, attempt.fencing_token, won))

    async def _journal(self, job: Job, execution: Execution) -> bool:
        """Return whether the attempt may run. A stage's first attempt is journalled together with the route, which is
        final from then on."""
        attempt, worker_id, stage = execution.attempt, execution.worker_id, execution.stage
        routed, handed, journal = job.routed[stage], start_image_of(execution.resolved), self.journal
        picture = start_image_to_bytes(handed) if handed is not None else b""
        if routed.journalled:
            return await until_durable(lambda: journal.start_attempt(attempt, worker_id, stage, picture))
        ours = to_bytes(execution.route, generation_pb2.Route)
        pinned, won = await until_durable(lambda: journal.route_and_start(attempt, worker_id, ours, stage, picture))
        execution.route = routed.journalled = (
            execution.route if pinned == ours else from_bytes(pinned, Route, generation_pb2.Route)
        )
        return won


def _progress_of(execution: Execution, event: StepProgress) -> Progress:
    spec, route = execution.resolved.spec, execution.route
    return Progress(
        event.step,
        event.step_count,
        event.preview,
        execution.attempt.attempt_number,
        width_px=spec.width_px,
        height_px=spec.height_px,
        saved_steps=route.start.saved_steps + left_out_steps(execution),
    )


async def _told(worker_id: str, call: Awaitable[object]) -> None:
    """Await a call about an attempt; a worker that does not answer is lost soon, and its attempts with it."""
    try:
        await call
    except PentimentoError as error:
        logger.debug("an attempt was not changed", extra={"worker": worker_id, "reason": error.reason})


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
