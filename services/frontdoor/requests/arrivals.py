"""Turn calls into running requests: look up their keys, submit new requests, journal and announce them."""

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pentimento.dataplane.effects import Announce, PersistAccepted, Reject
from pentimento.dataplane.events import AcceptDropped, AcceptPersisted, RequestArrived
from pentimento.domain.errors import PentimentoError, PermissionDenied, ResourceExhausted, Unavailable
from pentimento.domain.image_request import ResolvedRequest
from pentimento.domain.reasons import Reason
from pentimento.policies.adapter_needs import needs_of
from pentimento.policies.cells import tagged_digits
from pentimento.policies.plan.entry import Stage
from pentimento.stores.errors import StoreUnavailable, UnansweredCommit
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, AcceptKind, AcceptOutcome
from pentimento.stores.ledger.journal.webhooks import AskedWebhook
from pentimento.telemetry.tracing import annotate, traces_gen_ai
from services.frontdoor.answers.audience import (
    Audience,
    Listener,
    group_of,
    ids_of_images,
    key_of_image,
    new_group_id,
    seed_of_image,
)
from services.frontdoor.answers.delivery import RecordedAnswers, key_reused
from services.frontdoor.identity import Identity
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal.commits import RETRIES
from services.frontdoor.journal.recovery import JOURNALLED_REQUEST, resolved_to_bytes
from services.frontdoor.metrics import QUOTA_REFUSALS
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.jobs import ClientRequest, Job, Jobs
from services.frontdoor.requests.limits import Acceptance, Quotas
from services.frontdoor.routing.starts import admitted_stages, as_painted_by
from services.frontdoor.routing.step_rules import StepRules
from services.frontdoor.workers.catalogue import Catalogue

logger = logging.getLogger(__name__)

SEED_BITS = 32


@dataclass(frozen=True)
class ValidatedRequest:
    """Hold the validated request, the stages with models that can generate it, and its draw for the shares of plans.
    `seed_drawn`: its client named no seed. `digests`: of its input images by field, needed before it arrives."""

    resolved: ResolvedRequest
    stages: tuple[Stage, ...]
    draw: float
    seed_drawn: bool = False
    digests: Mapping[str, str] = field(default_factory=dict)

    def image(self, index: int) -> ResolvedRequest:
        """Return the request of one of several images: only the seeds differ, drawn if the client named none."""
        spec = self.resolved.spec
        drawn = secrets.randbits(SEED_BITS) if self.seed_drawn and index else spec.seed
        seed = drawn if self.seed_drawn else seed_of_image(spec.seed, index)
        return replace(self.resolved, spec=replace(spec, seed=seed), image_index=index)


@dataclass(frozen=True)
class ArrivingCall:
    """Describe a call for images. `body` returns its bytes, `validate` the validated request; each is called at
    most once. `webhook_url`: as `ClientRequest`. `hears_progress`: the caller also waits for
    routed and for progress without previews."""

    tenant: str
    idempotency_key: str
    body: Callable[[], bytes]
    validate: Callable[[], Awaitable[ValidatedRequest]]
    webhook_url: str | None = None
    hears_progress: bool = True
    # A replay: it runs in the cell that has its request, at home or not.
    stays: bool = False


@dataclass(frozen=True)
class KeyedImage:
    """Hold an image's idempotency key, the digest of its call's body, and the id of the request that has the key in the
    journal, "" before there is one. `hand_over_count`: see `CellGate.check_new`."""

    index: int
    key: str = ""
    body_hash: str = ""
    request_id: str = ""
    hand_over_count: int | None = None


def trace_attributes(request: ClientRequest, image_count: int) -> dict[str, str | int | float | bool]:
    """Return what the span of a call says of its request: the first image's id, and with the detail `prompts`
    OpenTelemetry's gen_ai attributes."""
    found: dict[str, str | int | float | bool] = {"pentimento.request_id": request.request_id}
    if not traces_gen_ai():
        return found
    spec = request.resolved.spec
    message = {"role": "user", "parts": [{"type": "text", "content": spec.prompt}]}
    return found | {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "pentimento",
        "gen_ai.output.type": "image",
        "gen_ai.request.model": spec.model,
        "gen_ai.request.seed": spec.seed,
        "gen_ai.request.choice.count": image_count,
        "gen_ai.input.messages": json.dumps([message], ensure_ascii=False),
    }


@dataclass(frozen=True)
class KeyOwners:
    """Find the requests that have a call's idempotency keys, here or in a former cell of the tenant."""

    journal: Journal
    cells: CellGate
    acceptance: Acceptance

    async def look_up(self, call: ArrivingCall, count: int) -> list[KeyedImage]:
        """Return the owner of each image's key, if any; a known key is answered regardless of the load. The journal
        separates simultaneous calls when they are accepted. Raises FailedPrecondition for a key that came with another
        body, and as `CellGate.check_new` if no image has a request here."""
        if not call.idempotency_key:
            await self._check_cell(call)
            return [KeyedImage(index) for index in range(count)]
        body_hash = hashlib.sha256(call.body()).hexdigest()
        keys = [key_of_image(call.idempotency_key, index) for index in range(count)]
        try:
            asked = [self.journal.find_key(call.tenant, key, body_hash) for key in keys]
            found = [await asyncio.wrap_future(answer) for answer in asked]
        except PentimentoError as error:
            self.acceptance.fail(error)
            raise
        if any(outcome is not None and outcome.kind is AcceptKind.BODY_DIFFERS for outcome in found):
            raise key_reused()
        hand_overs = None if any(found) else await self._check_cell(call)
        ids = [outcome.request_id if outcome is not None else "" for outcome in found]
        return [KeyedImage(index, key, body_hash, ids[index], hand_overs) for index, key in enumerate(keys)]

    async def _check_cell(self, call: ArrivingCall) -> int | None:
        return None if call.stays else await self.cells.check_new(call.tenant, call.idempotency_key)


@dataclass(frozen=True)
class Arrivals:
    """Let calls listen to their requests, and submit the new ones to the dataplane."""

    interpreter: Interpreter
    owners: KeyOwners
    answers: RecordedAnswers
    cells: CellGate
    quotas: Quotas
    inputs: Inputs
    catalogue: Catalogue
    rules: StepRules

    async def listen_to_images(self, call: ArrivingCall, count: int) -> list[Listener]:
        """Return a listener for each of a call's images, by index, after new images have arrived."""
        images = await self.owners.look_up(call, count)
        new = self._new_images(images)
        by_index: dict[int, Listener] = {}
        try:
            for image in images:
                if image.request_id:
                    listening = self.answers.listen(call.tenant, image.request_id, hears_progress=call.hears_progress)
                    by_index[image.index] = await listening
            arrived = self._arrive(call, await call.validate(), new) if new else ()
        except BaseException:
            # Images of an earlier call continue: a later call may still find them.
            for listener in by_index.values():
                listener.leave()
            raise
        by_index.update(zip((image.index for image in new), arrived, strict=True))
        return [by_index[index] for index in range(count)]

    def _arrive(
        self, call: ArrivingCall, validated: ValidatedRequest, images: Sequence[KeyedImage]
    ) -> tuple[Listener, ...]:
        """Submit new images to the dataplane, which admits all or none. Raises ResourceExhausted for an exhausted
        quota, and as the catalogue if the model has been removed since the validation."""
        if not call.stays:
            # The tenant may have been handed over while the call was validated.
            self.cells.check_home(call.tenant, images[0].hand_over_count)
        # Calls that may raise come before anything is held for the requests.
        entered, pools = validated.stages[0], tuple(stage.pool for stage in validated.stages)
        first = self.catalogue.find(entered.model)
        painted = as_painted_by(validated.resolved, first)
        thinning = self.rules.expected_thinning(painted, first)
        requests = [self._client_request(call, validated, image) for image in images]
        jobs = [Job(request, Audience(request.request_id)) for request in requests]
        self.quotas.admit(jobs)
        listeners = tuple(job.audience.join(hears_progress=call.hears_progress) for job in jobs)
        request, *others = requests
        arrived = RequestArrived(
            request.request_id,
            call.tenant,
            pools[0],
            painted.cost,
            request.deadline,
            cascade=pools,
            needs=needs_of(validated.resolved.spec),
            thinning=thinning,
            others=tuple(other.request_id for other in others),
            cascade_name=entered.cascade,
            has_inputs=bool(request.resolved.inputs),
            planned=entered.planned,
        )
        annotate(trace_attributes(request, len(jobs)))
        self.interpreter.submit(arrived)
        return listeners

    def _new_images(self, images: Sequence[KeyedImage]) -> list[KeyedImage]:
        """Return the images that have no request yet, with ids of the call that began them."""
        new = [image for image in images if not image.request_id]
        if len(images) == 1:
            return [replace(image, request_id=f"r-{tagged_digits(self.cells.own)}") for image in new]
        group = next((group_of(image.request_id) for image in images if image.request_id), "")
        group = group or new_group_id(len(images), tagged_digits(self.cells.own))
        return [replace(image, request_id=f"{group}-{image.index}") for image in new]

    def _client_request(self, call: ArrivingCall, validated: ValidatedRequest, image: KeyedImage) -> ClientRequest:
        now, wall = self.interpreter.clock.monotonic(), self.interpreter.clock.wall()
        resolved = validated.image(image.index)
        deadline_s = resolved.deadline_ms / 1000
        return ClientRequest(
            request_id=image.request_id,
            tenant=call.tenant,
            resolved=self.inputs.claim(call.tenant, image.request_id, resolved, validated.digests),
            stages=validated.stages,
            arrived_at=now,
            accepted_at=wall,
            deadline=now + deadline_s,
            deadline_at=wall + deadline_s,
            draw=validated.draw,
            idempotency_key=image.key,
            body_hash=image.body_hash,
            webhook_url=call.webhook_url,
        )


def rejection(effect: Reject) -> PentimentoError:
    if effect.reason == Reason.POOL_NOT_ALLOWED:
        return PermissionDenied(effect.reason, effect.message)
    error = Unavailable if effect.reason in (Reason.DRAINING, Reason.STANDBY) else ResourceExhausted
    metadata = {"quota": effect.quota} if effect.quota else None
    return error(effect.reason, effect.message, retry_after_ms=effect.retry_after_ms or None, metadata=metadata)


@dataclass(frozen=True)
class Admissions:
    """Accept and reject the requests that have arrived; a request with a known key joins the earlier one."""

    interpreter: Interpreter
    journal: Journal
    identity: Identity
    jobs: Jobs
    inputs: Inputs
    acceptance: Acceptance
    answers: RecordedAnswers
    shadows: Shadows

    def persist_accepted(self, effect: PersistAccepted) -> None:
        job = self.jobs.get(effect.request_id)
        self.shadows.make_way()
        self.jobs.spawn(job, self._accept(job), effect)

    def announce(self, effect: Announce) -> None:
        job = self.jobs.get(effect.request_id)
        self.acceptance.accept(job.request.tenant)
        job.audience.accepted()

    def reject(self, effect: Reject) -> None:
        job = self.jobs.get(effect.request_id)
        self.acceptance.reject(job.request.tenant, effect.reason)
        if effect.quota:
            QUOTA_REFUSALS.labels(effect.quota).inc()
        self.jobs.end(job, rejection(effect))

    async def _accept(self, job: Job) -> None:
        """Journal a new request. Before that succeeds nothing is promised, so an error goes straight to the client."""
        request = job.request
        try:
            await self.inputs.store(job)
            outcome = await self._outcome_of_accepting(request)
        except PentimentoError as error:
            self.acceptance.fail(error)
            self._drop(job, error)
            return
        self.acceptance.journalled()
        if outcome.kind is AcceptKind.NEW or outcome.request_id == request.request_id:
            job.time_stage("accept", request.arrived_at, self.interpreter.clock.monotonic())
            self.interpreter.submit(AcceptPersisted(request.request_id))
        elif outcome.kind is AcceptKind.EXISTING:
            self.interpreter.submit(AcceptDropped(request.request_id))
            self.answers.hand_over(job, outcome.request_id)
        else:
            self._drop(job, key_reused())

    def _drop(self, job: Job, error: PentimentoError) -> None:
        self.interpreter.submit(AcceptDropped(job.request.request_id))
        self.jobs.end(job, error)

    async def _outcome_of_accepting(self, request: ClientRequest) -> AcceptOutcome:
        """Return the journal's answer. Ask again if the row may already be written: otherwise the request would never
        run."""
        may_be_in, delays_s = False, RETRIES.delays_s()
        while True:
            try:
                accepting = self.journal.accept(_row_of(request, self.identity), _webhook_of(request))
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
