"""What the ledger says of entries, kept in memory for a while: a lookup reads the same popular entries again and again.

A live entry's row never changes until the entry, or an object of it, goes. What this process takes away is forgotten at
once. What another gateway over the same ledger takes away may be told of for `row_age_s` more; its objects stay for the
grace of evictions, which is longer. Rows are kept by id: whose they are and what for is checked at every use.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CachedEntry

# About 6 MiB.
_MOST_ROWS = 4096


class EntryRows:
    """Rows of live entries by id. Thread-safe: a dictionary's single operations are."""

    def __init__(self, ledger: CacheLedger, row_age_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """`row_age_s` is how long a row is kept at most; 0: not at all."""
        self._ledger = ledger
        self._row_age_s = row_age_s
        self._now = now
        self._kept: dict[str, tuple[float, int, CachedEntry]] = {}

    def kept(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        """Return those of the entries that are in memory, without ever waiting."""
        since, removal_count = self._now() - self._row_age_s, self._ledger.removal_count
        found = {}
        for entry_id in entry_ids:
            row = self._kept.get(entry_id)
            if row is not None and row[0] > since and row[1] == removal_count:
                found[entry_id] = row[2]
        return found

    def read(self, entry_ids: Sequence[str]) -> Mapping[str, CachedEntry]:
        """Return those of the entries that are live, in one read of those that are not in memory. Blocks; raises
        StoreUnavailable."""
        found = self.kept(entry_ids)
        missing = [entry_id for entry_id in entry_ids if entry_id not in found]
        if not missing:
            return found
        # Before the read: what goes meanwhile is read again.
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
