"""Serve the public API independently of its transport: every edge (gRPC now, HTTP later) calls this."""

import random
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.dataplane.events import CancelRequested
from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.errors import Internal, PentimentoError
from pentimento.domain.fleet import HeldModel
from pentimento.domain.image_request import (
    Accepted,
    CellAddress,
    Explanation,
    GenerateEvent,
    ImageRequest,
    ModelInfo,
    PinnedImage,
    ReplayRequest,
    RequestStatus,
    TenantCells,
)
from pentimento.domain.requests import RequestState
from pentimento.domain.spec_inputs import take_inputs
from pentimento.policies.plan.entry import allowed_stages, request_stages
from pentimento.stores.ledger.epochs import superseded
from pentimento.wire.codec import to_bytes
from services.frontdoor.answers.audience import Listener, SeveralImages, ids_of_images, status_of
from services.frontdoor.answers.delivery import KEY_REUSED, elsewhere
from services.frontdoor.objects.inputs import checked_digests
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.arrivals import SEED_BITS, Arrivals, ArrivingCall, ValidatedRequest
from services.frontdoor.requests.limits import Callers, HeldKeys, Quotas
from services.frontdoor.requests.pins import recorded_image, resolve_replay
from services.frontdoor.requests.resolution import check_idempotency_key, check_image_count, resolve
from services.frontdoor.requests.selections import with_served_adapters
from services.frontdoor.requests.tenant_requests import TenantRequests, statuses_by_index, summary_of_several
from services.frontdoor.routing.explaining import check_neighbour_count, explanation, neighbours_of
from services.frontdoor.routing.starts import choose_stages, fits
from services.frontdoor.settings import RequestLimits
from services.frontdoor.workers.catalogue import MODEL_WAIT_S


class ImageApi:
    """Handle calls in domain values and raise domain errors. `tenant` is the caller's; other tenants' requests are
    invisible."""

    def __init__(
        self,
        parts: FrontdoorParts,
        limits: RequestLimits,
        cascade: Sequence[str],
        quotas: Quotas,
        tenants: TenantRequests,
        check_webhook: Callable[[str], None],
    ) -> None:
        """Set up the API. `cascade`: models by stage, if the plan names no stages. `check_webhook` raises for an
        address that no job may name."""
        self._parts = parts
        self._limits = limits
        self._cascade = cascade
        self._arrivals = Arrivals(parts, quotas)
        self._callers = Callers()
        self._keys = HeldKeys()
        self._tenants = tenants
        self._check_webhook = check_webhook
        # True once the process stops: streams then break because of this process, not because their clients left.
        self.stopping = False
        self._superseded = False

    def hand_over(self) -> None:
        """End every present and later stream with Unavailable SUPERSEDED: another frontdoor is active, and a retry with
        the same key finds its request there."""
        self.stopping = self._superseded = True
        for job in self._parts.jobs:
            job.audience.end(superseded())
            # `cancel` waits for this event.
            job.ended.set()

    def generate(
        self,
        tenant: str,
        request: ImageRequest,
        idempotency_key: str = "",
        preview_interval_steps: int = 0,
        *,
        omit_progress: bool = False,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress and completed. Closing the stream early cancels the request, unless it has
        other listeners. Several images (`image_count`) share one accepted event; the other events come for each.
        `omit_progress`: skip routed and progress without a preview."""
        validate = partial(self._validate_image, tenant, request, preview_interval_steps)
        body = partial(to_bytes, request, pb.ImageRequest)
        call = ArrivingCall(tenant, idempotency_key, body, validate, hears_progress=not omit_progress)
        return self._generate(call, request.image_count)

    def replay(
        self, tenant: str, request: ReplayRequest, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Generate a completed request's image once more, with events as `generate`. Raises NotFound for a request that
        is not the tenant's, and as `resolve_replay`."""
        validate = partial(self._validate_replay, tenant, request, preview_interval_steps)
        return self._generate(
            ArrivingCall(tenant, idempotency_key, partial(_replay_body, request), validate, stays=True)
        )

    async def submit(
        self,
        tenant: str,
        request: ImageRequest,
        idempotency_key: str = "",
        preview_interval_steps: int = 0,
        webhook_url: str = "",
    ) -> Accepted:
        """Submit the request as a job, which continues without listeners; each of several images is one. Return once it
        is journalled, or immediately for a known key."""
        if webhook_url:
            self._check_webhook(webhook_url)
        body = partial(_job_body, request, webhook_url)
        if request.deadline_ms is None:
            request = replace(request, deadline_ms=self._limits.max_deadline_ms)
        validate = partial(self._validate_image, tenant, request, preview_interval_steps)
        call = ArrivingCall(tenant, idempotency_key, body, validate, webhook_url)
        async with aclosing(self._generate(call, request.image_count)) as events:
            async for event in events:
                if isinstance(event, Accepted):
                    return event
        raise Internal("UNEXPECTED", "the request was neither accepted nor rejected")

    async def attach(self, tenant: str, request_id: str) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of an earlier request, as `generate`. Raises NotFound for one that is not the tenant's."""
        ids = ids_of_images(request_id) or (request_id,)
        known = await self._tenants.known(tenant, request_id)
        with self._callers.calling(tenant, request_id, "request_id"):
            listeners: list[Listener] = []
            try:
                for one in ids:
                    listeners.append(await self._arrivals.attach(tenant, one, known))
                async for event in self._told(listeners, is_several=ids != (request_id,)):
                    yield event
            finally:
                self._leave(listeners)

    async def _generate(self, call: ArrivingCall, count: int | None = 1) -> AsyncGenerator[GenerateEvent, None]:
        """Generate each image as a separate request; new ones are accepted together.

        A call with the same key waits until they are accepted, and joins them.
        """
        check_idempotency_key(call.idempotency_key)
        count = check_image_count(count)
        with self._callers.calling(call.tenant, call.idempotency_key):
            listeners: list[Listener] = []
            try:
                async with self._keys.held(call.tenant, call.idempotency_key):
                    listeners += await self._arrivals.listen_to_images(call, count)
                    told = self._told(listeners, is_several=count > 1)
                    try:
                        accepted = await anext(told)
                    except PentimentoError as error:
                        self._give_up(call, listeners, error)
                        raise
                # The stream may stay open for long and must not hold the request's input images.
                del call
                yield accepted
                async for event in told:
                    yield event
            finally:
                self._leave(listeners)

    def _give_up(self, call: ArrivingCall, listeners: list[Listener], refusal: PentimentoError) -> None:
        """Leave the other images of a call if one was rejected.

        Images with a key continue, as a retry finds them; all others are cancelled, jobs too.
        """
        if call.idempotency_key and refusal.reason != KEY_REUSED:
            for listener in listeners:
                listener.leave()
            listeners.clear()
        for listener in listeners:
            self._parts.submit(CancelRequested(listener.audience.request_id))

    async def _told(self, listeners: Sequence[Listener], *, is_several: bool) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of one listener, or of all."""
        for listener in listeners if self._superseded else ():
            listener.end(superseded())
        if not is_several:
            async for event in listeners[0].events():
                yield event
            return
        pictures = SeveralImages(listeners)
        yield await pictures.accepted()
        async for event in pictures.events():
            yield event

    async def _validate_image(
        self, tenant: str, request: ImageRequest, preview_interval_steps: int
    ) -> ValidatedRequest:
        self._parts.identity.require_active()
        deadline_s = MODEL_WAIT_S if request.deadline_ms is None else request.deadline_ms / 1000.0
        await self._parts.catalogue.wait_until_loaded(request.model, deadline_s)
        # A preview would be seen before the image's verdict.
        preview_interval_steps *= not self._parts.safety.checks_images
        validated = self._validate(tenant, request, preview_interval_steps)
        await self._parts.safety.check_prompt(validated.resolved.spec.prompt)
        if request.pin_ms is not None:
            inputs = take_inputs(validated.resolved.spec)[1]
            await self._parts.pins.check_room(tenant, request.pin_ms, sum(map(len, inputs.values())))
        return replace(validated, digests=await checked_digests(validated.resolved.spec))

    async def _validate_replay(
        self, tenant: str, request: ReplayRequest, preview_interval_steps: int
    ) -> ValidatedRequest:
        """Validate a replay by the journal's record only; its model generates it, regardless of the plan's other
        models."""
        self._parts.identity.require_active()
        recorded = recorded_image(await self._tenants.record(tenant, request.request_id))
        request = await self._parts.pins.with_kept_inputs(tenant, request)
        model, draw, plan = recorded.provenance.spec.model, random.random(), self._parts.dataplane.state.index
        await self._parts.catalogue.wait_until_loaded(model, MODEL_WAIT_S)
        held = self._parts.catalogue.find(model)
        spec = with_served_adapters(recorded.provenance.spec, self._parts.adapters)
        recorded = replace(recorded, provenance=replace(recorded.provenance, spec=spec))
        preview_interval_steps *= not self._parts.safety.checks_images
        resolved = resolve_replay(request, recorded, held, self._limits, preview_interval_steps)
        stages = request_stages(plan, model, draw, quota=self._parts.tenants.quota_of(tenant))
        return ValidatedRequest(resolved, stages, draw, digests=await checked_digests(resolved.spec))

    def _validate(self, tenant: str, request: ImageRequest, preview_interval_steps: int = 0) -> ValidatedRequest:
        """Return the validated request, with the stages that can generate an image of its size, in pools that the
        tenant may use. Raises InvalidArgument if no model can, and as `resolve` and `choose_stages`."""
        self._parts.identity.require_active()
        draw = random.random()
        catalogue, plan = self._parts.catalogue, self._parts.dataplane.state.index
        quota = self._parts.tenants.quota_of(tenant)
        held, stages = choose_stages(request, draw, catalogue, plan, self._cascade, quota)
        seed = secrets.randbits(SEED_BITS)
        known = self._parts.adapters
        resolved = resolve(request, held, known, self._limits, seed, preview_interval_steps)
        fitting = tuple(stage for stage in stages if fits(resolved, catalogue.find(stage.model), known))
        if not fitting:
            # The last model's error names the limit.
            resolve(request, catalogue.find(stages[-1].model), known, self._limits, seed)
        return ValidatedRequest(
            resolved, allowed_stages(fitting or stages, quota), draw, seed_drawn=request.seed is None
        )

    async def pin(self, tenant: str, request_id: str, duration_ms: int) -> PinnedImage:
        """Keep the image of a completed request replayable for `duration_ms`. Raises as `Pins`, and NotFound for a
        request that is not the tenant's."""
        return await self._parts.pins.pin(await self._tenants.record(tenant, request_id), duration_ms)

    async def unpin(self, tenant: str, request_id: str) -> None:
        """End the pin of a request. Raises NotFound for a request that is not the tenant's."""
        record = await self._tenants.record(tenant, request_id)
        await self._parts.pins.unpin(tenant, record.request.request_id)

    async def cancel(self, tenant: str, request_id: str) -> RequestState:
        """Cancel the request, all images of several, and return its final state, which is not CANCELLED if the cancel
        came too late. Raises Unavailable REQUEST_ELSEWHERE for a request that another frontdoor runs."""
        found = [self._arrivals.find_job(tenant, one) for one in ids_of_images(request_id) or (request_id,)]
        jobs = [job for job in found if job is not None]
        for job in jobs:
            self._parts.submit(CancelRequested(job.request.request_id))
        for job in jobs:
            await job.ended.wait()
        state = (await self.get_request(tenant, request_id, omit_image=True)).state
        if not state.terminal:
            raise elsewhere()
        return state

    async def get_request(self, tenant: str, request_id: str, omit_image: bool = False) -> RequestStatus:
        """Return the status of a request; for several images the status of each, without its bytes."""
        ids = ids_of_images(request_id)
        if ids:
            known = await self._tenants.known(tenant, request_id)
            found = {one: await self.get_request(tenant, one, omit_image=True) for one in ids if one in known}
            status = status_of(request_id, tuple(found.values()))
            summaries = [one.summary for one in status.images if one.summary is not None]
            webhook = await self._tenants.webhook(summaries[0], request_id)
            status = replace(status, images=statuses_by_index(ids, found))
            return replace(status, summary=summary_of_several(request_id, status.state, summaries), webhook=webhook)
        record = await self._tenants.record(tenant, request_id)
        completed = None
        if record.state is RequestState.COMPLETED:
            completed = await self._parts.results.load(record, with_image=not omit_image)
        summary = self._tenants.summary(record)
        webhook = await self._tenants.webhook(summary)
        ended = (record.error_reason, record.error_message)
        job = None if summary.state.terminal else self._arrivals.find_job(tenant, request_id)
        progress = job.audience.progress if job is not None else None
        status = RequestStatus(request_id, summary.state, completed, *ended, summary=summary, webhook=webhook)
        return replace(status, progress=progress)

    async def explain(self, tenant: str, request: ImageRequest, neighbour_count: int = 0) -> Explanation:
        """Return the route that `generate` would take now, and that many of the cache's nearest entries; nothing is
        accepted or journalled. Raises InvalidArgument for too many."""
        check_neighbour_count(neighbour_count)
        validated = self._validate(tenant, request)
        explained, option, embedding = await explanation(
            self._parts, tenant, validated, names_model=bool(request.model)
        )
        near = await neighbours_of(self._parts, tenant, option, embedding, neighbour_count)
        return replace(explained, neighbours=near)

    def find_cell(self, tenant: str) -> TenantCells:
        cells = self._parts.cells.cells
        places = [
            CellAddress(name, cells.addresses.get(name, "")) for name in (cells.home(tenant), *cells.formers(tenant))
        ]
        return TenantCells(tenant, places[0], tuple(places[1:]))

    def list_models(self) -> tuple[ModelInfo, ...]:
        return self._parts.catalogue.infos(self._ready_worker_count)

    def list_adapters(self) -> tuple[Adapter, ...]:
        return self._parts.adapters.offered()

    def rejected_adapters(self) -> tuple[RejectedAdapter, ...]:
        return self._parts.adapters.rejected

    def _leave(self, listeners: Sequence[Listener]) -> None:
        for listener in listeners:
            listener.leave()
            request_id = listener.audience.request_id
            job = self._parts.jobs.find(request_id)
            goes_on = listener.ended or self.stopping or (job is not None and job.request.is_job)
            if not goes_on and not listener.audience.listeners:
                self._parts.submit(CancelRequested(request_id, client_left=True))

    def _ready_worker_count(self, held: HeldModel) -> int:
        workers = self._parts.dataplane.state.workers.values()
        return sum(worker.holds(held.model_digest) and not worker.draining for worker in workers)


def _replay_body(request: ReplayRequest) -> bytes:
    """Return the bytes of a replay for its digest. No request for a new image has these bytes."""
    return b"replay\0" + to_bytes(request, pb.ReplayRequest)


def _job_body(request: ImageRequest, webhook_url: str) -> bytes:
    """Return the bytes of a job for its digest. No request with a waiting client has these bytes."""
    return b"job\0" + webhook_url.encode() + b"\0" + to_bytes(request, pb.ImageRequest)
