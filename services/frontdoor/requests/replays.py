"""From a completed request's record to the request that paints its picture again.

Nothing of a start comes from outside: a client names a request, and the journal's own record, read as the caller's
tenant, says the rest. So a provenance that somebody wrote by hand leads to nobody else's objects.
"""

from dataclasses import dataclass

from pentimento.api.generation.v1 import generation_pb2
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Provenance
from pentimento.domain.image_request import CacheMode, ImageFormat, Replay, ReplayRequest, ResolvedRequest
from pentimento.domain.replay import replayed_route, with_replayed_inputs
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.records import JournalledRequest
from pentimento.wire.codec import from_bytes
from services.frontdoor.requests.resolution import RequestLimits, check_cost, default_deadline_ms, resolve_limits


@dataclass(frozen=True)
class Recorded:
    """A picture as the journal recorded it: how it came to be, its format, and the digest of its bytes."""

    provenance: Provenance
    format: ImageFormat
    image_digest: str


def recorded_picture(record: JournalledRequest) -> Recorded:
    """Return what the journal says of the request's picture. Raises FailedPrecondition NOT_COMPLETED without one."""
    result = record.result
    if record.state is not RequestState.COMPLETED or result is None:
        message = f"request_id: only a completed request has an image, this one is {record.state.value}"
        raise FailedPrecondition("NOT_COMPLETED", message)
    return Recorded(
        from_bytes(result.provenance, Provenance, generation_pb2.Provenance),
        ImageFormat(result.image_format),
        result.image.digest,
    )


def resolve_replay(
    asked: ReplayRequest, recorded: Recorded, held: HeldModel, limits: RequestLimits, preview_interval_steps: int
) -> ResolvedRequest:
    """Return the request that paints the recorded picture again, with the cache off; `held` is its model as it is held
    now. Raises as `replayed_route` and `with_replayed_inputs`, and InvalidArgument beyond the limits of now."""
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
