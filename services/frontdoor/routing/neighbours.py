"""The entries of the cache that are near a request's prompt, for people who want to see what it would choose among."""

from pentimento.domain.cache import LookupCandidate, Neighbour
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.routing.bounded_calls import bounded
from services.frontdoor.routing.stages import PoolOption
from services.frontdoor.routing.starts import scope_of

MAX_NEIGHBOUR_COUNT = 50
# A person waits for it, no picture does.
_TIMEOUT_S = 2.0


def check_neighbour_count(count: int) -> None:
    """Raise InvalidArgument for more than there may be."""
    if not 0 <= count <= MAX_NEIGHBOUR_COUNT:
        raise InvalidArgument.of("neighbour_count", f"must be between 0 and {MAX_NEIGHBOUR_COUNT}, got {count}")


async def neighbours_of(
    parts: FrontdoorParts, tenant: str, option: PoolOption, embedding: Embedding | None, count: int
) -> tuple[Neighbour, ...]:
    """Return so many of the nearest by the prompt, and as many by the picture, as the option's model could start from;
    none where the cache cannot be asked, or is not by this request."""
    resolved = option.resolved
    if not count or parts.gateway is None or embedding is None or not resolved.cacheable:
        return ()
    route = option.route
    scope = scope_of(tenant, resolved, option.held, route.lora_patch_step, route.pipelined_from_step)
    call = parts.gateway.neighbours(LookupCandidate(scope), embedding, count, _TIMEOUT_S)
    return await bounded("gateway", _TIMEOUT_S, call, loses="neighbours") or ()
