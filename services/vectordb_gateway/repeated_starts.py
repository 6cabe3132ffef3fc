"""Remembers where requests started, so that the same prompt and seed give the same image while that entry lives."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from pentimento.domain.cache import CacheScope, image_key
from pentimento.domain.generation import FromImage, FromLatent, Start
from pentimento.stores.ledger.cache_records import CachedEntry
from services.vectordb_gateway.searches import Match, Matches, NearestMatches, latents_for

# The starts that were asked for longest ago are forgotten beyond it.
_MOST_COUNT = 10_000

_Key = tuple[str, CacheScope]


class RepeatedStarts:
    """The entry that the newest requests started from, by their digest of prompt and seed and their scope. It may be
    asked and told on any thread."""

    def __init__(self) -> None:
        self._starts: OrderedDict[_Key, tuple[type[Start], str, float]] = OrderedDict()
        self._lock = Lock()

    def entry_id(self, repeat_key: str, scope: CacheScope) -> str:
        """Return the entry that the request started from before; empty where it is not known."""
        known = self._known(repeat_key, scope)
        return known[1] if known is not None else ""

    def matches(
        self, repeat_key: str, scope: CacheScope, read: Callable[[str], CachedEntry | None], pools: tuple[str, ...]
    ) -> Matches | None:
        """Return that entry alone; None where it is not known, or serves no more."""
        known = self._known(repeat_key, scope)
        entry = read(known[1]) if known is not None else None
        if known is None or entry is None or entry.pool not in pools:
            return None
        only, nothing = NearestMatches([Match(entry, known[2])]), NearestMatches()
        if known[0] is FromLatent:
            return Matches(only, nothing) if latents_for(scope, entry) else None
        return Matches(nothing, only) if entry.image is not None and entry.image_key == image_key(scope) else None

    def note(self, repeat_key: str, scope: CacheScope, start: Start) -> None:
        """Remember where a request starts; a start from noise needs no entry."""
        if not repeat_key or not isinstance(start, FromLatent | FromImage):
            return
        with self._lock:
            self._starts[repeat_key, scope] = type(start), start.donor.entry_id, start.donor.similarity
            self._starts.move_to_end((repeat_key, scope))
            if len(self._starts) > _MOST_COUNT:
                self._starts.popitem(last=False)

    def _known(self, repeat_key: str, scope: CacheScope) -> tuple[type[Start], str, float] | None:
        with self._lock:
            return self._starts.get((repeat_key, scope)) if repeat_key else None
