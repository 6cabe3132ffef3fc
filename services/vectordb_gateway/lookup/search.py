"""The searches of one lookup: the nearest live entries of its pools that hold something for a scope. For people their
entries are listed, near enough or not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.cache import CacheScope, LookupCandidate, Neighbour, image_key, latent_key, latent_keys
from pentimento.policies.cache_selection import MOST_SEARCHED_COUNT, NEAREST_COUNT
from pentimento.stores.ledger.cache.records import CachedEntry, HeldLatent
from pentimento.stores.vectors import Space, VectorIndex, VectorMatch, VectorQuery
from services.vectordb_gateway.settings import MAX_ANCESTOR_DEPTH


@dataclass(frozen=True)
class Match:
    """A live entry and its cosine similarity to the query."""

    entry: CachedEntry
    similarity: float


@dataclass(frozen=True)
class Matches:
    """The live entries that a candidate may start from, nearest first: those with a latent for it, and those with an
    image."""

    by_text: Sequence[Match] = ()
    by_image: Sequence[Match] = ()


@dataclass(frozen=True)
class LookupBounds:
    """Bounds of a lookup. `timeout_s`: seconds until it is a miss. `scratch_share` (0..1): lookups that miss on
    purpose, so that images stay diverse (NIRVANA, appendix C). `row_age_s`: seconds that ledger rows stay cached."""

    timeout_s: float
    scratch_share: float = 0.0
    row_age_s: float = 0.0


# From this cosine on two prompts are the same one to the encoder.
_SAME_PROMPT = 0.9999
# If no match may serve, the next search looks for this many times as many.
_WIDER = 4

Serves = Callable[[CachedEntry], bool]
# Read the live entries with these ids.
ReadEntries = Callable[[Sequence[str]], Awaitable[Mapping[str, CachedEntry]]]


class LookupSearch:
    """The searches of one lookup among the entries of `pools`. Each distinct query is made once, and each entry is read
    once. `vector` is the prompt's among texts, `image_vector` among images; None: the same one. `repeat_key` is the
    digest of the request's prompt and seed, empty if unknown."""

    def __init__(
        self,
        index: VectorIndex,
        read: ReadEntries,
        vector: bytes,
        pools: tuple[str, ...],
        bounds: LookupBounds,
        limit_count: int = NEAREST_COUNT,
        repeat_key: str = "",
        image_vector: bytes | None = None,
    ) -> None:
        self._index = index
        self._read = read
        self._bounds = bounds
        self._limit_count = limit_count
        self._found: dict[VectorQuery, Sequence[VectorMatch]] = {}
        self._rows: dict[str, CachedEntry | None] = {}
        self.vector = vector
        self._image_vector = vector if image_vector is None else image_vector
        self.pools = pools
        self.repeat_key = repeat_key

    def latent_query(self, scope: CacheScope) -> VectorQuery:
        """Return the query for entries with a latent for the scope, by their prompts."""
        return VectorQuery(Space.TEXT, self.vector, self.pools, latent_keys(scope), self._limit_count)

    def stored_query(self, scope: CacheScope) -> VectorQuery:
        """Return the query for entries with an image for the scope, by their prompts."""
        return VectorQuery(Space.TEXT, self.vector, self.pools, (image_key(scope),), self._limit_count)

    def image_query(self, scope: CacheScope) -> VectorQuery:
        """Return the query for entries with an image for the scope, by their images."""
        return VectorQuery(Space.IMAGE, self._image_vector, self.pools, (image_key(scope),), self._limit_count)

    async def make(self, queries: Iterable[VectorQuery], entry_ids: Iterable[str] = ()) -> None:
        """Make the queries that are new, all at once, and read their entries and those of `entry_ids`. Raises
        StoreUnavailable, and InvalidArgument for a vector that the index refuses."""
        new = [query for query in dict.fromkeys(queries) if query not in self._found]
        searches = [self._index.search(query, self._bounds.timeout_s) for query in new]
        # A single search, as in most lookups, needs no task.
        found = await asyncio.gather(*searches) if len(searches) > 1 else [await each for each in searches]
        self._found.update(zip(new, found, strict=True))
        ids = [*(match.entry_id for matches in found for match in matches), *entry_ids]
        if unread := [entry_id for entry_id in dict.fromkeys(ids) if entry_id not in self._rows]:
            rows = await self._read(unread)
            self._rows.update((entry_id, rows.get(entry_id)) for entry_id in unread)

    def row(self, entry_id: str) -> CachedEntry | None:
        """Return an entry that was read; None if it is not live."""
        return self._rows.get(entry_id)

    async def latents(self, scope: CacheScope) -> Sequence[Match]:
        """Return the nearest entries by their prompts that hold a latent for the scope."""
        return await self._nearest(self.latent_query(scope), lambda entry: bool(latents_for(scope, entry)))

    async def stored(self, scope: CacheScope) -> Sequence[Match]:
        """Return the nearest entries by their prompts that hold an image for the scope."""
        return await self._nearest(self.stored_query(scope), lambda entry: has_image_for(scope, entry))

    async def images(self, scope: CacheScope) -> Sequence[Match]:
        """Return the nearest entries by their images that hold an image for the scope."""
        return await self._nearest(self.image_query(scope), lambda entry: entry.is_seen and has_image_for(scope, entry))

    async def _nearest(self, query: VectorQuery, serves: Serves) -> Sequence[Match]:
        """Return the matches that may serve: the request's own first, then the nearest; of one prompt the oldest first,
        so that the same seed finds the same start again.

        A wider search follows if there may be more entries than were found, and none found may serve or all are of the
        prompt and other seeds.
        """
        if query not in self._found:
            await self.make([query])
        found = self._found[query]
        nearest = sorted(self._serving(found, serves), key=self._order)
        lacks_own = all(_is_same_prompt(match) and not is_own(match, self.repeat_key) for match in nearest)
        if lacks_own and (not nearest or self.repeat_key) and len(found) >= query.limit_count < MOST_SEARCHED_COUNT:
            wider = replace(query, limit_count=min(query.limit_count * _WIDER, MOST_SEARCHED_COUNT))
            return await self._nearest(wider, serves)
        return nearest

    def _order(self, match: Match) -> tuple[bool, float, float]:
        age = (-1.0, match.entry.created_at) if _is_same_prompt(match) else (-match.similarity, 0.0)
        return (not is_own(match, self.repeat_key), *age)

    def _serving(self, found: Sequence[VectorMatch], serves: Serves) -> Iterator[Match]:
        for match in found:
            entry = self.row(match.entry_id)
            # The ledger is the truth: an entry of another pool, or an unfit object, is left out even if the index finds
            # it. Quality drifts from each image to the next one that starts from it (MoDM, A.6).
            is_young = entry is not None and entry.ancestor_depth < MAX_ANCESTOR_DEPTH
            if entry is not None and entry.pool in self.pools and is_young and serves(entry):
                yield Match(entry, match.similarity)


def is_own(match: Match, repeat_key: str) -> bool:
    """Return whether the entry is of the request's own prompt and seed."""
    return bool(repeat_key) and match.entry.repeat_key == repeat_key


def _is_same_prompt(match: Match) -> bool:
    return match.similarity >= _SAME_PROMPT


def has_image_for(scope: CacheScope, entry: CachedEntry) -> bool:
    """Return whether the entry holds an image that the scope may start from."""
    return entry.image is not None and entry.image_key == image_key(scope)


def latents_for(scope: CacheScope, entry: CachedEntry) -> tuple[HeldLatent, ...]:
    """Return the entry's latents that the scope may resume."""
    return tuple(each for each in entry.latents if each.compatibility_key == latent_key(scope, each.resume_step))


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
