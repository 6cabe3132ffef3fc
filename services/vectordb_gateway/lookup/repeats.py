"""Remember where requests started, so that the same prompt and seed give the same image while that entry lives."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from pentimento.domain.cache import CacheScope
from pentimento.domain.generation import FromImage, FromLatent, Start
from pentimento.stores.ledger.cache.ledger import CacheLedger
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


# About 6 MiB.
_MOST_ROWS = 4096


class EntryRows:
    """Rows of live entries by id. Thread-safe: a dictionary's single operations are."""

    def __init__(self, ledger: CacheLedger, row_age_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """Keep a row for `row_age_s` at most; 0: keep none."""
        self._ledger = ledger
        self._row_age_s = row_age_s
        self._now = now
        self._kept: dict[str, tuple[float, int, CachedEntry]] = {}

    def kept(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        """Return the rows that are in memory, without ever waiting."""
        since, removal_count = self._now() - self._row_age_s, self._ledger.removal_count
        found = {}
        for entry_id in entry_ids:
            row = self._kept.get(entry_id)
            if row is not None and row[0] > since and row[1] == removal_count:
                found[entry_id] = row[2]
        return found

    def read(self, entry_ids: Sequence[str]) -> Mapping[str, CachedEntry]:
        """Return the rows of the live entries; one read fetches the rows that are not in memory. Blocks; raises
        StoreUnavailable."""
        found = self.kept(entry_ids)
        missing = [entry_id for entry_id in entry_ids if entry_id not in found]
        if not missing:
            return found
        # Before the read: an entry that goes meanwhile is read again.
        read_at, removal_count = self._now(), self._ledger.removal_count
        fresh = self._ledger.live_entries(missing)
        self._keep({entry_id: (read_at, removal_count, entry) for entry_id, entry in fresh.items()})
        return found | fresh

    def _keep(self, fresh: dict[str, tuple[float, int, CachedEntry]]) -> None:
        if not self._row_age_s:
            return
        if len(self._kept) + len(fresh) > _MOST_ROWS:
            self._kept = {}
        self._kept.update(fresh)
