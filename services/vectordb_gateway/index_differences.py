"""What ledger and index do not agree about, found while both change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.vectors import VectorIndex

_PAGE_COUNT = 4000


@dataclass(frozen=True)
class IndexDifferences:
    """Ids of one range: `missing` are of live entries that the index should hold and does not; `unknown` are in the
    index and in no row."""

    missing: Sequence[str]
    unknown: Sequence[str]


def index_differences(ledger: CacheLedger, index: VectorIndex) -> Iterator[IndexDifferences]:
    """Yield the differences, range by range of ids. Raises StoreUnavailable.

    Rows are read only where the ids differ: those of a million entries are gigabytes.
    """
    after = ""
    until: str | None = ""
    while until is not None:
        known = ledger.entry_ids(after, limit_count=_PAGE_COUNT)
        until = known[-1] if len(known) == _PAGE_COUNT else None
        present = set(index.entry_ids(after, until))
        missing, unknown = set(known) - present, present.difference(known)
        # Both change meanwhile. The index gets an entry after its row and before its mark.
        if unknown:
            unknown.difference_update(ledger.entry_ids(after, until))
        if missing:
            missing = ledger.indexed_ids(missing)
        if missing:
            missing.difference_update(index.entry_ids(after, until))
        yield IndexDifferences(sorted(missing), sorted(unknown))
        after = until or ""
