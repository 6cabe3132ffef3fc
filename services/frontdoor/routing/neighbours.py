"""List the cache entries near a request's prompt, so that people can inspect its candidates."""

from pentimento.domain.cache import LookupCandidate, Neighbour
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.errors import InvalidArgument
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.routing.bounded_calls import bounded
from services.frontdoor.routing.stages import PoolOption
from services.frontdoor.routing.starts import scope_of

MAX_NEIGHBOUR_COUNT = 50
# A person waits for the answer; no request does.
_TIMEOUT_S = 2.0


def check_neighbour_count(count: int) -> None:
    """Raise InvalidArgument for a count outside 0..MAX_NEIGHBOUR_COUNT."""
    if not 0 <= count <= MAX_NEIGHBOUR_COUNT:
        raise InvalidArgument.of("neighbour_count", f"must be between 0 and {MAX_NEIGHBOUR_COUNT}, got {count}")


async def neighbours_of(
    parts: FrontdoorParts, tenant: str, option: PoolOption, embedding: PromptEmbedding | None, count: int
) -> tuple[Neighbour, ...]:
    """Return up to `count` nearest entries by prompt, and up to `count` by image, that the option's model could use.

    Return none if the cache is unavailable or the request does not use it.
    """
    resolved = option.resolved
    if not count or parts.gateway is None or embedding is None or not resolved.cacheable:
        return ()
    route = option.route
    scope = scope_of(tenant, resolved, option.held, route.lora_patch_step, route.pipelined_from_step)
    call = parts.gateway.neighbours(LookupCandidate(scope), embedding.text, count, _TIMEOUT_S, embedding.image)
    return await bounded("gateway", _TIMEOUT_S, call, loses="neighbours") or ()
