"""Keep the ledger's rows of entries in memory for a while: lookups read the same popular entries again and again.

A live entry's row never changes until the entry, or an object of it, goes. Removals of this process take effect at
once. A removal by another gateway over the same ledger may stay unseen for `row_age_s`; its objects stay for the grace
of evictions, which is longer. Rows are kept by id: pool and use are checked at every lookup.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import CachedEntry

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
