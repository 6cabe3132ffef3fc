"""The entries that a lookup would choose among, told to people: nothing is decided, counted or learnt."""

import asyncio
from collections.abc import Iterator
from functools import partial

from pentimento.domain.cache import CacheScope, LookupCandidate, Neighbour
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import DeadlineExceeded, InvalidArgument
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.vectors import VectorIndex
from services.vectordb_gateway.encoder_guard import EncoderGuard
from services.vectordb_gateway.searches import LookupBounds, NearestMatches, SharedSearches, latents_for
from services.vectordb_gateway.store_threads import StoreThreads
from services.vectordb_gateway.validation import check_candidates, pools_of

MAX_NEIGHBOUR_COUNT = 50
# People look rarely, and must not be in the way of lookups.
_THREAD_COUNT = 1
_TIMEOUT_S = 1.0


class NeighbourSearch:
    """Searches for those that are near, whether near enough or not, in a thread of its own."""

    def __init__(self, guard: EncoderGuard, index: VectorIndex, ledger: CacheLedger, bounds: LookupBounds) -> None:
        self._guard = guard
        self._index = index
        self._ledger = ledger
        self._bounds = bounds
        self._threads = StoreThreads(_THREAD_COUNT, "neighbours")

    async def nearest(
        self, candidate: LookupCandidate, embedding: Embedding, limit_count: int
    ) -> tuple[Neighbour, ...]:
        """Return the live entries nearest by their prompts, then those by their pictures. Raises InvalidArgument for an
        incomplete scope, another encoder's embedding or a wrong `limit_count`; StoreUnavailable; DeadlineExceeded."""
        check_candidates([candidate])
        self._guard.check(embedding, "text_embedding")
        if not 1 <= limit_count <= MAX_NEIGHBOUR_COUNT:
            raise InvalidArgument.of("limit_count", f"must be between 1 and {MAX_NEIGHBOUR_COUNT}, got {limit_count}")
        if not self._guard.bound or not self._guard.prepared:
            return ()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._threads.run(self._search, candidate, embedding.values, limit_count)
        except TimeoutError:
            raise DeadlineExceeded("STORE_SLOW", f"the index did not answer in {_TIMEOUT_S:g} s") from None

    def close(self) -> None:
        """Let go of the thread; a search that still runs ends by its own timeout."""
        self._threads.close()

    def _search(self, candidate: LookupCandidate, vector: bytes, limit_count: int) -> tuple[Neighbour, ...]:
        scope, search = candidate.scope, partial(self._index.search, timeout_s=_TIMEOUT_S)
        read = self._ledger.live_entries
        searches = SharedSearches(search, read, vector, pools_of(scope), self._bounds, limit_count)
        by_prompt = list(_told(scope, searches.latents(scope), by_picture=False)) if candidate.latents else []
        by_picture = list(_told(scope, searches.images(scope), by_picture=True)) if candidate.images else []
        return (*by_prompt, *by_picture)


def _told(scope: CacheScope, matches: NearestMatches, *, by_picture: bool) -> Iterator[Neighbour]:
    for match in matches:
        entry = match.entry
        steps = () if by_picture else tuple(latent.resume_step for latent in latents_for(scope, entry))
        yield Neighbour(
            entry_id=entry.entry_id,
            similarity=match.similarity,
            by_picture=by_picture,
            resume_steps=steps,
            ancestor_depth=entry.ancestor_depth,
            created_at_ms=round(entry.created_at * 1000),
            request_id=entry.request_id_for(scope.tenant),
        )
