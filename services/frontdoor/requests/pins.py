"""Replay images, and pin them so that they can be replayed until a given time.

No part of a replay's start comes from outside: a client names a request, and the journal's own record, read as the
caller's tenant, gives the rest. A forged provenance thus leads to no other tenant's objects.

For a pin the journal keeps the request and its inputs, the gateway keeps the latents or image that it started from. The
journal goes first, since it counts a tenant's pinned bytes. A failure of the gateway undoes that.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from pentimento.api.generation.v1 import generation_pb2
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.clock import Clock
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import ObjectReference, Provenance, SpecInput
from pentimento.domain.image_request import (
    CacheMode,
    ImageFormat,
    PinnedImage,
    Replay,
    ReplayInput,
    ReplayRequest,
    ResolvedRequest,
)
from pentimento.domain.jobs import RequestState
from pentimento.domain.replay import ancestor_of, replayed_route, start_taken, taken_of, with_replayed_inputs
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.pins import quota_exceeded
from pentimento.stores.ledger.journal.records import JournalledRequest, PicturePin
from pentimento.wire.codec import from_bytes
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Execution, Job
from services.frontdoor.requests.resolution import check_cost, default_deadline_ms, resolve_limits
from services.frontdoor.settings import RequestLimits


@dataclass(frozen=True)
class Recorded:
    """Hold the journal's record of an image: provenance, format, and digest of the bytes without a manifest."""

    provenance: Provenance
    format: ImageFormat
    image_digest: str


def recorded_image(record: JournalledRequest) -> Recorded:
    """Return the journal's record of the request's image. Raises FailedPrecondition NOT_COMPLETED without one."""
    result = record.result
    if record.state is not RequestState.COMPLETED or result is None:
        message = f"request_id: only a completed request has an image, this one is {record.state.value}"
        raise FailedPrecondition("NOT_COMPLETED", message)
    provenance = from_bytes(result.provenance, Provenance, generation_pb2.Provenance)
    return Recorded(provenance, ImageFormat(result.image_format), provenance.unsigned_digest or result.image.digest)


def resolve_replay(
    asked: ReplayRequest, recorded: Recorded, held: HeldModel, limits: RequestLimits, preview_interval_steps: int
) -> ResolvedRequest:
    """Return the request that generates the recorded image again, with the cache off; `held` is its model as held now.
    Raises as `replayed_route` and `with_replayed_inputs`, and InvalidArgument beyond the current limits."""
    provenance = recorded.provenance
    route = replayed_route(provenance, held.model_digest)
    own_ms = default_deadline_ms(provenance.spec, held, limits)
    asked_ms = own_ms if asked.deadline_ms is None else asked.deadline_ms
    deadline_ms, interval = resolve_limits(asked_ms, preview_interval_steps, limits)
    resolved = ResolvedRequest(
        spec=with_replayed_inputs(provenance.spec, provenance.inputs, asked.data_by_field),
        cache=CacheMode.OFF,
        format=recorded.format,
        quality=None,
        deadline_ms=deadline_ms,
        preview_interval_steps=interval,
        replay=Replay(route, recorded.image_digest),
        encoding_quality=provenance.encoding_quality,
    )
    check_cost(resolved.cost, None, limits)
    return resolved


logger = logging.getLogger(__name__)

# Bytes that a pinned request's row counts for: without it, images from noise could be pinned without limit.
ROW_BYTES = 4096
# The longest pin, 90 days.
MAX_PIN_MS = 90 * 86_400_000
# A client waits for the image during the call.
_GATEWAY_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Pins:
    """Pin and unpin images. Methods raise InvalidArgument for a wrong time, ResourceExhausted QUOTA_EXCEEDED, NotFound
    ANCESTOR_GONE, and Unavailable if journal or gateway do not answer."""

    journal: Journal
    gateway: GatewayClient | None
    keeper: ObjectKeeper
    clock: Clock
    tenant_input_bytes: int

    async def pin(self, record: JournalledRequest, duration_ms: int) -> PinnedImage:
        """Keep the completed request replayable for `duration_ms` from now. Its inputs are kept only if it has been
        pinned since it was made."""
        self.check_duration("duration_ms", duration_ms)
        provenance, request = recorded_image(record).provenance, record.request
        former = await asyncio.wrap_future(self.journal.pins.find(request.tenant, request.request_id))
        inputs = former.inputs if former is not None else ()
        ancestor = ancestor_of(start_taken(provenance))
        wanted = self._wanted(request.tenant, request.request_id, duration_ms, inputs, ancestor)
        await self._pin(wanted, ancestor)
        keeps_all = len(inputs) == len(provenance.inputs)
        return PinnedImage(request.request_id, round(wanted.expires_at * 1000), wanted.size_bytes, keeps_all)

    async def unpin(self, tenant: str, request_id: str) -> None:
        """Remove the pin of the request. No error if it was not pinned."""
        if self.gateway is not None:
            await self.gateway.unpin_objects(tenant, request_id, _GATEWAY_TIMEOUT_S)
        await asyncio.wrap_future(self.journal.pins.unpin(tenant, request_id))

    async def keep(self, job: Job, execution: Execution) -> None:
        """Pin the image, if the request set a pin. A failure costs only the pin, not the image; the image's notes
        report it."""
        asked, result = job.request.resolved, execution.result
        if not asked.pin_ms or result is None:
            return
        request = job.request
        ancestor = ancestor_of(taken_of(execution.route.start, result.steps_saved))
        wanted = self._wanted(request.tenant, request.request_id, asked.pin_ms, asked.inputs, ancestor)
        try:
            await self._pin(wanted, ancestor)
        except PentimentoError as error:
            logger.warning("an image was not pinned", extra={"reason": error.reason})
            job.note(f"not pinned: {error.reason}")

    async def let_go(self, tenant: str, request_id: str) -> None:
        """Do as `unpin`, for a request that ended without an image. If the gateway is away, its part expires with the
        pin."""
        try:
            await self.unpin(tenant, request_id)
        except PentimentoError as error:
            logger.info("a pin is left to expire", extra={"reason": error.reason})

    async def check_room(self, tenant: str, duration_ms: int, input_bytes: int) -> None:
        """Reject a request with a pin that would not fit even if the image started from noise."""
        self.check_duration("pin_ms", duration_ms)
        pinned = await asyncio.wrap_future(self.journal.pins.pinned_bytes(tenant))
        if pinned + input_bytes + ROW_BYTES > self.tenant_input_bytes:
            raise quota_exceeded(self.tenant_input_bytes)

    def check_duration(self, field: str, duration_ms: int) -> None:
        """Reject a pin of no time, or of more than `MAX_PIN_MS`."""
        if not 0 < duration_ms <= MAX_PIN_MS:
            raise InvalidArgument.of(field, f"must be between 1 and {MAX_PIN_MS}, got {duration_ms}")

    async def with_kept_inputs(self, tenant: str, asked: ReplayRequest) -> ReplayRequest:
        """Return the replay with its stored input bytes added to the inputs that the caller sent again."""
        found = await asyncio.wrap_future(self.journal.pins.find(tenant, asked.request_id))
        given = asked.data_by_field
        for part in found.inputs if found is not None else ():
            if part.field not in given:
                try:
                    given[part.field] = await self.keeper.get(part.object)
                except (ObjectMissing, ObjectCorrupt):
                    logger.error("a pinned input differs from what was stored")
        return replace(asked, inputs=tuple(ReplayInput(place, data) for place, data in given.items()))

    def _wanted(
        self,
        tenant: str,
        request_id: str,
        duration_ms: int,
        inputs: tuple[SpecInput, ...],
        ancestor: ObjectReference | None,
    ) -> PicturePin:
        kept = [part.object.size_bytes for part in inputs] + ([ancestor.size_bytes] if ancestor is not None else [])
        expires_at = self.clock.wall() + duration_ms / 1000
        return PicturePin(request_id, tenant, expires_at, sum(kept) + ROW_BYTES, inputs)

    async def _pin(self, wanted: PicturePin, ancestor: ObjectReference | None) -> None:
        former = await asyncio.wrap_future(self.journal.pins.pin(wanted, self.tenant_input_bytes))
        if ancestor is None:
            return
        try:
            if self.gateway is None:
                raise Unavailable("NO_CACHE", "the cache of the image's start is not available")
            duration_s = wanted.expires_at - self.clock.wall()
            asked = (wanted.tenant, wanted.request_id, ancestor, duration_s)
            await self.gateway.pin_object(*asked, _GATEWAY_TIMEOUT_S)
        except PentimentoError:
            await self._undo(wanted, former)
            raise

    async def _undo(self, wanted: PicturePin, former: PicturePin | None) -> None:
        pins = self.journal.pins
        if former is None:
            await asyncio.wrap_future(pins.unpin(wanted.tenant, wanted.request_id))
        else:
            await asyncio.wrap_future(pins.pin(former, self.tenant_input_bytes))
