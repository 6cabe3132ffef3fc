"""Create the request that generates a completed request's image again.

No part of a start comes from outside: a client names a request, and the journal's own record, read as the caller's
tenant, gives the rest. A forged provenance thus leads to no other tenant's objects.
"""

from dataclasses import dataclass

from pentimento.api.generation.v1 import generation_pb2
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Provenance
from pentimento.domain.image_request import CacheMode, ImageFormat, Replay, ReplayRequest, ResolvedRequest
from pentimento.domain.replay import replayed_route, with_replayed_inputs
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.journal.records import JournalledRequest
from pentimento.wire.codec import from_bytes
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
