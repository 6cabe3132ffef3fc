"""The searches of one lookup: the nearest live entries of the asker's pools that hold something for a scope."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.cache import CacheScope, image_key, latent_key, latent_keys
from pentimento.policies.cache_selection import MOST_SEARCHED_COUNT, NEAREST_COUNT
from pentimento.stores.ledger.cache_records import CachedEntry, HeldLatent
from pentimento.stores.vectors import Space, VectorMatch, VectorQuery


@dataclass(frozen=True)
class Match:
    """A live entry and its cosine similarity to the query."""

    entry: CachedEntry
    similarity: float


class NearestMatches:
    """Matches that are looked at as far as somebody asks for them, each once."""

    def __init__(self, source: Iterable[Match] = ()) -> None:
        self._source = iter(source)
        self._read: list[Match] = []

    def __iter__(self) -> Iterator[Match]:
        yield from self._read
        for match in self._source:
            self._read.append(match)
            yield match

    def __getitem__(self, number: int) -> Match:
        """Return a match that was read; the nearest one is number 0."""
        return self._read[number]

    @property
    def nearest(self) -> Match | None:
        """Return the nearest one of those that were read."""
        return self._read[0] if self._read else None


@dataclass(frozen=True)
class Matches:
    """The nearest live entries that a candidate may start from: those with a latent for it, and those with an image,
    the nearest first."""

    by_text: NearestMatches
    by_image: NearestMatches


@dataclass(frozen=True)
class LookupBounds:
    """What bounds a lookup: seconds; ancestors in a row, of which the last is nobody's donor; the share (0..1) of
    lookups that are misses whatever there is, so that pictures stay diverse (NIRVANA, appendix C); and the seconds for
    which rows of the ledger are kept in memory."""

    timeout_s: float
    max_ancestor_depth: int
    scratch_share: float = 0.0
    row_age_s: float = 0.0


# From this cosine on two prompts are the same one to the encoder.
_SAME_PROMPT = 0.9999
# So many times as many are looked for next where none of those found may serve.
_WIDER = 4

Search = Callable[[VectorQuery], Sequence[VectorMatch]]
ReadEntries = Callable[[Sequence[str]], Mapping[str, CachedEntry]]


class SharedSearches:
    """The searches of one lookup, which `search` answers; each distinct one is made once. `read` gives the live ones
    of the entries that were found."""

    def __init__(
        self,
        search: Search,
        read: ReadEntries,
        vector: bytes,
        pools: tuple[str, ...],
        bounds: LookupBounds,
        limit_count: int = NEAREST_COUNT,
        repeat_key: str = "",
    ) -> None:
        """`repeat_key` is the request's digest of prompt and seed, empty where it is not known."""
        self._answer = search
        self._read = read
        self._vector = vector
        self._pools = pools
        self._bounds = bounds
        self._limit_count = limit_count
        self._repeat_key = repeat_key
        self._found: dict[tuple[VectorQuery, int], NearestMatches] = {}

    def latents(self, scope: CacheScope) -> NearestMatches:
        """Return the nearest entries by their prompts that hold a latent for the scope."""
        query = latent_query(self._vector, self._pools, scope, self._limit_count)
        return self._nearest(query, scope.adapters_from_step, lambda entry: bool(latents_for(scope, entry)))

    def images(self, scope: CacheScope) -> NearestMatches:
        """Return the nearest entries by their pictures whose image the scope may start from."""
        key, query = image_key(scope), image_query(self._vector, self._pools, scope, self._limit_count)
        return self._nearest(query, 0, lambda entry: entry.image is not None and entry.image_key == key)

    def _nearest(self, query: VectorQuery, part: int, serves: Callable[[CachedEntry], bool]) -> NearestMatches:
        """`part` tells apart the searches whose query is the same and whose `serves` is not."""
        if (query, part) not in self._found:
            self._found[query, part] = NearestMatches(self._live(query, self._answer(query), serves))
        return self._found[query, part]

    def _live(
        self, query: VectorQuery, found: Sequence[VectorMatch], serves: Callable[[CachedEntry], bool]
    ) -> Iterator[Match]:
        """Those that may serve, the request's own first, then the nearest, of one prompt's the oldest: the same seed
        finds the same start again. Where there may be more than were found, and none may serve or all are of the prompt
        and other seeds, those of a wider search."""
        nearest = sorted(self._serving(found, serves), key=self._order)
        lacks_own = all(_is_same_prompt(match) and not is_own(match, self._repeat_key) for match in nearest)
        if lacks_own and (not nearest or self._repeat_key) and len(found) >= query.limit_count < MOST_SEARCHED_COUNT:
            wider = replace(query, limit_count=min(query.limit_count * _WIDER, MOST_SEARCHED_COUNT))
            yield from self._live(wider, self._answer(wider), serves)
            return
        yield from nearest

    def _order(self, match: Match) -> tuple[bool, float, float]:
        age = (-1.0, match.entry.created_at) if _is_same_prompt(match) else (-match.similarity, 0.0)
        return (not is_own(match, self._repeat_key), *age)

    def _serving(self, found: Sequence[VectorMatch], serves: Callable[[CachedEntry], bool]) -> Iterator[Match]:
        entries = self._read([match.entry_id for match in found])
        for match in found:
            entry = entries.get(match.entry_id)
            # The ledger is the truth: whatever the index says, nobody gets another pool's entry, or an unfit object.
            if entry is not None and entry.pool in self._pools and self._is_young(entry) and serves(entry):
                yield Match(entry, match.similarity)

    def _is_young(self, entry: CachedEntry) -> bool:
        """Whether one more picture may descend from it: quality drifts from each to the next (MoDM, A.6)."""
        return entry.ancestor_depth < self._bounds.max_ancestor_depth


def is_own(match: Match, repeat_key: str) -> bool:
    """Return whether the entry is of the request's own prompt and seed."""
    return bool(repeat_key) and match.entry.repeat_key == repeat_key


def _is_same_prompt(match: Match) -> bool:
    return match.similarity >= _SAME_PROMPT


def latent_query(
    vector: bytes, pools: tuple[str, ...], scope: CacheScope, limit_count: int = NEAREST_COUNT
) -> VectorQuery:
    """Return the search for entries with a latent for the scope, by their prompts."""
    return VectorQuery(Space.TEXT, vector, pools, latent_keys(scope), limit_count)


def image_query(
    vector: bytes, pools: tuple[str, ...], scope: CacheScope, limit_count: int = NEAREST_COUNT
) -> VectorQuery:
    """Return the search for entries with an image for the scope, by their pictures."""
    return VectorQuery(Space.IMAGE, vector, pools, (image_key(scope),), limit_count)


def latents_for(scope: CacheScope, entry: CachedEntry) -> tuple[HeldLatent, ...]:
    """The entry's latents that the scope may resume; of two of one step the first."""
    return tuple(each for each in entry.latents if each.compatibility_key == latent_key(scope, each.resume_step))
