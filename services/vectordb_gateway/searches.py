"""The searches of one lookup: the nearest live entry of the asker's pools that holds something for a scope."""

from collections.abc import Callable
from dataclasses import dataclass

from pentimento.domain.cache import CacheScope, image_key, latent_key, latent_keys
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CachedEntry, HeldLatent
from pentimento.stores.vectors import Space, VectorIndex, VectorQuery

# The nearest may have been evicted a moment ago.
_NEAREST_COUNT = 4


@dataclass(frozen=True)
class Match:
    """A live entry and its cosine similarity to the query."""

    entry: CachedEntry
    similarity: float


@dataclass(frozen=True)
class Matches:
    """The nearest live entries that a candidate may start from: one with a latent for it, one with an image."""

    by_text: Match | None
    by_image: Match | None


@dataclass(frozen=True)
class LookupBounds:
    """What bounds a lookup: seconds; ancestors in a row, of which the last is nobody's donor; and the share (0..1) of
    lookups that are misses whatever there is, so that pictures stay diverse (NIRVANA, appendix C)."""

    timeout_s: float
    max_ancestor_depth: int
    scratch_share: float = 0.0


class SharedSearches:
    """The searches of one lookup; each distinct one is made once."""

    def __init__(
        self, index: VectorIndex, ledger: CacheLedger, vector: bytes, pools: tuple[str, ...], bounds: LookupBounds
    ) -> None:
        self._index = index
        self._ledger = ledger
        self._vector = vector
        self._pools = pools
        self._bounds = bounds
        self._found: dict[tuple[VectorQuery, int], Match | None] = {}

    def latent(self, scope: CacheScope) -> Match | None:
        """The nearest entry by its prompt that holds a latent for the scope."""
        query = VectorQuery(Space.TEXT, self._vector, self._pools, latent_keys(scope), _NEAREST_COUNT)
        return self._nearest(query, scope.adapters_from_step, lambda entry: bool(latents_for(scope, entry)))

    def image(self, scope: CacheScope) -> Match | None:
        """The nearest entry by its picture whose image the scope may start from."""
        key = image_key(scope)
        query = VectorQuery(Space.IMAGE, self._vector, self._pools, (key,), _NEAREST_COUNT)
        return self._nearest(query, 0, lambda entry: entry.image is not None and entry.image_key == key)

    def _nearest(self, query: VectorQuery, part: int, serves: Callable[[CachedEntry], bool]) -> Match | None:
        """`part` tells apart the searches whose query is the same and whose `serves` is not."""
        if (query, part) not in self._found:
            self._found[query, part] = self._search(query, serves)
        return self._found[query, part]

    def _search(self, query: VectorQuery, serves: Callable[[CachedEntry], bool]) -> Match | None:
        for match in self._index.search(query, self._bounds.timeout_s):
            entry = self._ledger.live_entry(match.entry_id)
            # The ledger is the truth: whatever the index says, nobody gets another pool's entry, or an unfit object.
            if entry is not None and entry.pool in self._pools and self._is_young(entry) and serves(entry):
                return Match(entry, match.similarity)
        return None

    def _is_young(self, entry: CachedEntry) -> bool:
        """Whether one more picture may descend from it: quality drifts from each to the next (MoDM, A.6)."""
        return entry.ancestor_depth < self._bounds.max_ancestor_depth


def latents_for(scope: CacheScope, entry: CachedEntry) -> tuple[HeldLatent, ...]:
    """The entry's latents that the scope may resume; of two of one step the first."""
    return tuple(each for each in entry.latents if each.compatibility_key == latent_key(scope, each.resume_step))
