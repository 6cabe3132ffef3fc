"""Turn calls into running requests: look up keys, create new requests, and attach streams to requests."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pentimento.dataplane.events import RequestArrived
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.adapter_needs import needs_of
from pentimento.policies.plan.entry import Stage
from pentimento.stores.ledger.journal.records import AcceptKind
from pentimento.telemetry.tracing import annotate, traces_gen_ai
from services.frontdoor.answers.audience import Audience, Listener, group_of, key_of_image, new_group_id, seed_of_image
from services.frontdoor.answers.delivery import key_reused, recorded_events
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import ClientRequest, Job
from services.frontdoor.requests.limits import NO_KEY, KeyedCall, Quotas
from services.frontdoor.requests.tenant_requests import unknown_request
from services.frontdoor.routing.start_choice import expected_thinning
from services.frontdoor.routing.starts import as_painted_by

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
class NewImage:
    """Describe an image that is new under its key: its request's id, and its index among the call's images."""

    request_id: str
    key: KeyedCall = NO_KEY
    index: int = 0


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


class Arrivals:
    """Look up keys, and let requests in."""

    def __init__(self, parts: FrontdoorParts, quotas: Quotas) -> None:
        self._parts = parts
        self._quotas = quotas

    async def look_up(self, call: ArrivingCall, count: int) -> tuple[KeyedCall, ...]:
        """Return the owner of each image's key, if any; a known key is answered regardless of the load. The journal
        separates simultaneous calls when they are accepted. Raises FailedPrecondition for a key that came with another
        body, and as `CellGate.check_new` if no image has a request here."""
        if not call.idempotency_key:
            await self._check_cell(call)
            return (NO_KEY,) * count
        body_hash = hashlib.sha256(call.body()).hexdigest()
        keys = [key_of_image(call.idempotency_key, index) for index in range(count)]
        try:
            asked = [self._parts.journal.find_key(call.tenant, key, body_hash) for key in keys]
            found = [await asyncio.wrap_future(answer) for answer in asked]
        except PentimentoError as error:
            self._parts.acceptance.fail(error)
            raise
        if any(outcome is not None and outcome.kind is AcceptKind.BODY_DIFFERS for outcome in found):
            raise key_reused()
        hand_overs = None if any(found) else await self._check_cell(call)
        ids = (outcome.request_id if outcome is not None else "" for outcome in found)
        return tuple(KeyedCall(key, body_hash, one, hand_overs) for key, one in zip(keys, ids, strict=True))

    async def _check_cell(self, call: ArrivingCall) -> int | None:
        return None if call.stays else await self._parts.cells.check_new(call.tenant, call.idempotency_key)

    def find_job(self, tenant: str, request_id: str) -> Job | None:
        job = self._parts.jobs.find(request_id)
        return job if job is not None and job.request.tenant == tenant else None

    async def listen(self, tenant: str, request_id: str, *, hears_progress: bool = True) -> Listener:
        """Return a listener of a journalled request, running or ended."""
        job = self.find_job(tenant, request_id)
        if job is not None:
            return job.audience.join_late(hears_progress=hears_progress)
        listener = Audience(request_id).join_late(hears_progress=hears_progress)
        error: PentimentoError | None = None
        try:
            for event in await recorded_events(self._parts, request_id, tenant):
                listener.tell(event)
        except PentimentoError as ended_with:
            error = ended_with
        listener.end(error)
        return listener

    async def attach(self, tenant: str, request_id: str, known: Container[str]) -> Listener:
        """Return a listener of a request that is `known` to the journal or about to be; for any other id, a listener
        that ends with UNKNOWN_REQUEST."""
        if request_id in known or self.find_job(tenant, request_id) is not None:
            return await self.listen(tenant, request_id)
        listener = Audience(request_id).join_late()
        listener.end(unknown_request())
        return listener

    async def listen_to_images(self, call: ArrivingCall, count: int) -> list[Listener]:
        """Return a listener for each of a call's images, by index, after new images have arrived."""
        keys = await self.look_up(call, count)
        new = self._new_images(keys)
        by_index: dict[int, Listener] = {}
        try:
            for index, key in enumerate(keys):
                if key.request_id:
                    listening = self.listen(call.tenant, key.request_id, hears_progress=call.hears_progress)
                    by_index[index] = await listening
            arrived = self.arrive(call, await call.validate(), new) if new else ()
        except BaseException:
            # Images of an earlier call continue: a later call may still find them.
            for listener in by_index.values():
                listener.leave()
            raise
        by_index.update(zip((picture.index for picture in new), arrived, strict=True))
        return [by_index[index] for index in range(count)]

    def arrive(
        self, call: ArrivingCall, validated: ValidatedRequest, pictures: Sequence[NewImage]
    ) -> tuple[Listener, ...]:
        """Submit new images to the dataplane, which admits all or none. Raises ResourceExhausted for an exhausted
        quota, and as the catalogue if the model has been removed since the validation."""
        if not call.stays:
            # The tenant may have been handed over while the call was validated.
            self._parts.cells.check_home(call.tenant, pictures[0].key.hand_over_count)
        # Calls that may raise come before anything is held for the requests.
        first, spec = self._parts.catalogue.find(validated.stages[0].model), validated.resolved.spec
        pools, painted = tuple(stage.pool for stage in validated.stages), as_painted_by(validated.resolved, first)
        thinning = expected_thinning(self._parts, painted, first)
        jobs = self._new_jobs([self._client_request(call, validated, picture) for picture in pictures])
        listeners = tuple(job.audience.join(hears_progress=call.hears_progress) for job in jobs)
        request, others = jobs[0].request, tuple(job.request.request_id for job in jobs[1:])
        arrived = RequestArrived(
            request.request_id,
            call.tenant,
            pools[0],
            painted.cost,
            request.deadline,
            cascade=pools,
            needs=needs_of(spec),
            thinning=thinning,
            others=others,
            cascade_name=validated.stages[0].cascade,
            has_inputs=bool(request.resolved.inputs),
            planned=validated.stages[0].planned,
        )
        annotate(trace_attributes(request, len(jobs)))
        self._parts.submit(arrived)
        return listeners

    def _new_images(self, keys: Sequence[KeyedCall]) -> list[NewImage]:
        """Return the images that have no request yet, with ids of the call that began them."""
        if len(keys) == 1:
            return [] if keys[0].request_id else [NewImage(f"r-{self._parts.cells.new_digits()}", keys[0])]
        group = next((group_of(key.request_id) for key in keys if key.request_id), "")
        group = group or new_group_id(len(keys), self._parts.cells.new_digits())
        return [NewImage(f"{group}-{index}", key, index) for index, key in enumerate(keys) if not key.request_id]

    def _client_request(self, call: ArrivingCall, validated: ValidatedRequest, picture: NewImage) -> ClientRequest:
        now, wall = self._parts.clock.monotonic(), self._parts.clock.wall()
        resolved = validated.image(picture.index)
        deadline_s = resolved.deadline_ms / 1000
        return ClientRequest(
            request_id=picture.request_id,
            tenant=call.tenant,
            resolved=self._parts.inputs.claim(call.tenant, picture.request_id, resolved, validated.digests),
            stages=validated.stages,
            arrived_at=now,
            accepted_at=wall,
            deadline=now + deadline_s,
            deadline_at=wall + deadline_s,
            draw=validated.draw,
            idempotency_key=picture.key.idempotency_key,
            body_hash=picture.key.body_hash,
            webhook_url=call.webhook_url,
        )

    def _new_jobs(self, requests: Sequence[ClientRequest]) -> list[Job]:
        """Add and count new jobs, unless a quota of their tenant or a disk is exhausted."""
        jobs = [Job(request, Audience(request.request_id)) for request in requests]
        for job in jobs:
            self._parts.jobs.add(job)
        try:
            for job in jobs:
                self._quotas.check(job)
        except PentimentoError as error:
            self._parts.acceptance.reject(error.reason, len(jobs))
            self._parts.usage.refused(requests[0].tenant, error.reason, len(jobs))
            for job in jobs:
                self._parts.jobs.end(job)
            raise
        return jobs
