"""Remember where requests started, so that the same prompt and seed give the same image while that entry lives."""

from collections import OrderedDict
from collections.abc import Callable

from pentimento.domain.cache import CacheScope
from pentimento.domain.generation import FromImage, FromLatent, Start
from pentimento.stores.ledger.cache.records import CachedEntry
from services.vectordb_gateway.lookup.search import Match, Matches, has_image_for, latents_for

# Beyond it the starts that were asked for longest ago are forgotten.
_MOST_COUNT = 10_000

_Key = tuple[str, CacheScope]


class RepeatedStarts:
    """Entries that the newest requests started from, by their digest of prompt and seed and their scope. It belongs to
    one event loop."""

    def __init__(self) -> None:
        self._starts: OrderedDict[_Key, tuple[type[Start], str, float]] = OrderedDict()

    def entry_id(self, repeat_key: str, scope: CacheScope) -> str:
        """Return the entry that the request started from before; empty if unknown."""
        # A hash of a scope takes microseconds: a lookup without a key has none.
        known = self._starts.get((repeat_key, scope)) if repeat_key else None
        return known[1] if known is not None else ""

    def matches(
        self, repeat_key: str, scope: CacheScope, row: Callable[[str], CachedEntry | None], pools: tuple[str, ...]
    ) -> Matches | None:
        """Return that entry alone; None if it is unknown, or serves no more."""
        known = self._starts.get((repeat_key, scope)) if repeat_key else None
        entry = row(known[1]) if known is not None else None
        if known is None or entry is None or entry.pool not in pools:
            return None
        only = [Match(entry, known[2])]
        if known[0] is FromLatent:
            return Matches(by_text=only) if latents_for(scope, entry) else None
        return Matches(by_image=only) if has_image_for(scope, entry) else None

    def note(self, repeat_key: str, scope: CacheScope, start: Start) -> None:
        """Remember where a request starts; a start from noise needs no entry."""
        if not repeat_key or not isinstance(start, FromLatent | FromImage):
            return
        self._starts[repeat_key, scope] = type(start), start.donor.entry_id, start.donor.similarity
        self._starts.move_to_end((repeat_key, scope))
        if len(self._starts) > _MOST_COUNT:
            self._starts.popitem(last=False)
