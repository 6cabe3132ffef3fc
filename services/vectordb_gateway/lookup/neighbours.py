"""List the entries near a prompt for people: near enough or not."""

from collections.abc import Iterator, Sequence

from pentimento.domain.cache import CacheScope, LookupCandidate, Neighbour
from services.vectordb_gateway.lookup.search import LookupSearch, Match, latents_for

MAX_NEIGHBOUR_COUNT = 50


async def neighbours_of(candidate: LookupCandidate, search: LookupSearch) -> tuple[Neighbour, ...]:
    """Return the live entries nearest by their prompts, then those nearest by their images."""
    scope = candidate.scope
    latents = await search.latents(scope) if candidate.latents else ()
    images = await search.images(scope) if candidate.images else ()
    return (*_described(scope, latents, by_image=False), *_described(scope, images, by_image=True))


def _described(scope: CacheScope, matches: Sequence[Match], *, by_image: bool) -> Iterator[Neighbour]:
    for match in matches:
        entry = match.entry
        steps = () if by_image else tuple(latent.resume_step for latent in latents_for(scope, entry))
        yield Neighbour(
            entry_id=entry.entry_id,
            similarity=match.similarity,
            by_image=by_image,
            resume_steps=steps,
            ancestor_depth=entry.ancestor_depth,
            created_at_ms=round(entry.created_at * 1000),
            request_id=entry.request_id_for(scope.tenant),
        )
