"""Generate images for callers, in domain values: start requests, and stream their events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.dataplane.events import CancelRequested
from pentimento.domain.errors import Internal, PentimentoError
from pentimento.domain.image_request import Accepted, GenerateEvent, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger.epochs import superseded
from pentimento.wire.codec import to_bytes
from services.frontdoor.answers.audience import Listener, SeveralImages, ids_of_images
from services.frontdoor.answers.delivery import KEY_REUSED, elsewhere
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.requests.arrivals import Arrivals, ArrivingCall
from services.frontdoor.requests.jobs import Jobs
from services.frontdoor.requests.limits import Callers, HeldKeys
from services.frontdoor.requests.resolution import check_idempotency_key, check_image_count
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.requests.validation import Validation
from services.frontdoor.webhooks.calling import WebhookRules


@dataclass
class ImageApi:
    """Handle calls in domain values and raise domain errors. `tenant` is the caller's; other tenants' requests are
    invisible."""

    interpreter: Interpreter
    jobs: Jobs
    arrivals: Arrivals
    validation: Validation
    tenants: TenantRequests
    webhooks: WebhookRules
    # True once the process stops: streams then break because of this process, not because their clients left.
    stopping: bool = field(default=False, init=False)
    _superseded: bool = field(default=False, init=False)
    _callers: Callers = field(default_factory=Callers, init=False)
    _keys: HeldKeys = field(default_factory=HeldKeys, init=False)

    def hand_over(self) -> None:
        """End every present and later stream with Unavailable SUPERSEDED: another frontdoor is active, and a retry with
        the same key finds its request there."""
        self.stopping = self._superseded = True
        for job in self.jobs:
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
        validate = partial(self.validation.image, tenant, request, preview_interval_steps)
        body = partial(to_bytes, request, pb.ImageRequest)
        call = ArrivingCall(tenant, idempotency_key, body, validate, hears_progress=not omit_progress)
        return self._generate(call, request.image_count)

    def replay(
        self, tenant: str, request: ReplayRequest, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Generate a completed request's image once more, with events as `generate`. Raises NotFound for a request that
        is not the tenant's, and as `resolve_replay`."""
        validate = partial(self.validation.replay, tenant, request, preview_interval_steps)
        body = partial(_replay_body, request)
        return self._generate(ArrivingCall(tenant, idempotency_key, body, validate, stays=True))

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
            self.webhooks.target(webhook_url)
        body = partial(_job_body, request, webhook_url)
        if request.deadline_ms is None:
            request = replace(request, deadline_ms=self.validation.limits.max_deadline_ms)
        validate = partial(self.validation.image, tenant, request, preview_interval_steps)
        call = ArrivingCall(tenant, idempotency_key, body, validate, webhook_url)
        async with aclosing(self._generate(call, request.image_count)) as events:
            async for event in events:
                if isinstance(event, Accepted):
                    return event
        raise Internal("UNEXPECTED", "the request was neither accepted nor rejected")

    async def attach(self, tenant: str, request_id: str) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of an earlier request, as `generate`. Raises NotFound for one that is not the tenant's."""
        ids = ids_of_images(request_id) or (request_id,)
        known = await self.tenants.known(tenant, request_id)
        with self._callers.calling(tenant, request_id, "request_id"):
            listeners: list[Listener] = []
            try:
                for one in ids:
                    listeners.append(await self.arrivals.answers.attach(tenant, one, known))
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
                    listeners += await self.arrivals.listen_to_images(call, count)
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
            self.interpreter.submit(CancelRequested(listener.audience.request_id))

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

    async def cancel(self, tenant: str, request_id: str) -> RequestState:
        """Cancel the request, all images of several, and return its final state, which is not CANCELLED if the cancel
        came too late. Raises Unavailable REQUEST_ELSEWHERE for a request that another frontdoor runs."""
        found = [self.jobs.of_tenant(tenant, one) for one in ids_of_images(request_id) or (request_id,)]
        jobs = [job for job in found if job is not None]
        for job in jobs:
            self.interpreter.submit(CancelRequested(job.request.request_id))
        for job in jobs:
            await job.ended.wait()
        state = (await self.tenants.get_request(tenant, request_id, omit_image=True)).state
        if not state.terminal:
            raise elsewhere()
        return state

    def _leave(self, listeners: Sequence[Listener]) -> None:
        for listener in listeners:
            listener.leave()
            request_id = listener.audience.request_id
            job = self.jobs.find(request_id)
            goes_on = listener.ended or self.stopping or (job is not None and job.request.is_job)
            if not goes_on and not listener.audience.listeners:
                self.interpreter.submit(CancelRequested(request_id, client_left=True))


def _replay_body(request: ReplayRequest) -> bytes:
    """Return the bytes of a replay for its digest. No request for a new image has these bytes."""
    return b"replay\0" + to_bytes(request, pb.ReplayRequest)


def _job_body(request: ImageRequest, webhook_url: str) -> bytes:
    """Return the bytes of a job for its digest. No request with a waiting client has these bytes."""
    return b"job\0" + webhook_url.encode() + b"\0" + to_bytes(request, pb.ImageRequest)
