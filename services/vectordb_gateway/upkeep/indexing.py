"""Keep the index equal to the ledger: add new entries, remove doomed ones, repair differences."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from pentimento.rpc.process import started_pool
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import EntryVectors
from pentimento.stores.vectors import VectorIndex, VectorPoint
from services.vectordb_gateway import metrics
from services.vectordb_gateway.lookup.encoder import EncoderGuard

_PAGE_COUNT = 4000
T = TypeVar("T")

_BATCH_COUNT = 256
# A commit does not wait longer for its entry to become findable; a later round sees to it.
_COMMIT_WAIT_S = 1.0


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


@dataclass(frozen=True)
class _Batch:
    """Entries of the ledger with numbers above `after`, read after `removals` removals."""

    after: int
    removals: int
    entries: list[EntryVectors]


class _InTurn:
    """A lock that goes to the thread that waits longest, not back to its last holder."""

    def __init__(self) -> None:
        self._gate, self._lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._gate:
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Indexing:
    """Adds and removes points. Blocking, except `make_findable`. Methods raise StoreUnavailable and may be repeated."""

    def __init__(
        self,
        ledger: CacheLedger,
        index: VectorIndex,
        guard: EncoderGuard,
        on_indexed: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._guard = guard
        self._on_indexed = on_indexed
        self._lock = _InTurn()
        # How often entries were taken out.
        self._removals = 0
        # How often the index had been started when it was last compared.
        self._compared_start = 0
        self._thread = started_pool(1, "indexing")
        self._reader = started_pool(1, "indexing-reader")

    @property
    def may_lack_points(self) -> bool:
        """Return whether the index was started since it was last compared: what it could not read then is not there."""
        return self._index.starts_count != self._compared_start

    async def make_findable(self) -> None:
        """Run `index_newest`, and wait a second for it at most: raises TimeoutError then, and the work continues."""
        async with asyncio.timeout(_COMMIT_WAIT_S):
            await asyncio.get_running_loop().run_in_executor(self._thread, self.index_newest)

    def index_newest(self) -> None:
        """Add the newest live entries that the index lacks, one batch. Entries that it lost are left to `index_new`:
        commits do not wait for them."""
        with self._lock:
            self._guard.prepare_index()
            if batch := self._ledger.newest_unindexed(_BATCH_COUNT):
                self._index.upsert([_point(vectors) for vectors in batch])
                self._ledger.mark_indexed(batch).result()
        self._on_indexed()

    def index_new(self) -> None:
        """Add every live entry that the index lacks, or has under keys that the entry lost, in batches. Commits add
        theirs between two batches. While the index takes one, the next is read and the last one is marked."""
        marked: Future[None] | None = None
        following: Future[_Batch] | None = self._reader.submit(self._read, -1)
        try:
            while following is not None:
                with self._lock:
                    # Another gateway may have stored the first entry of all.
                    self._guard.open()
                    batch = following.result()
                    if batch.removals != self._removals:
                        # An entry of the batch may be gone from the ledger: no later round would remove its point.
                        batch = self._read(batch.after)
                    following = None
                    if len(batch.entries) == _BATCH_COUNT:
                        following = self._reader.submit(self._read, batch.entries[-1].sequence)
                    if batch.entries:
                        self._index.upsert([_point(vectors) for vectors in batch.entries])
                        if marked is not None:
                            marked.result()
                        marked = self._ledger.mark_indexed(batch.entries)
        finally:
            # The points that the index took are marked before its refusal of the rest is raised.
            if marked is not None:
                marked.result()
        self._settle()
        self._on_indexed()

    def remove_doomed(self) -> None:
        """Take doomed entries out of the index, then out of the ledger."""
        while self._remove_batch():
            pass

    def reconcile(self) -> None:
        """Make up for an index that was lost or replaced: compare ids, both ways."""
        if not self._guard.bound:
            return
        starts_count = self._index.starts_count
        self._guard.prepare_again()
        # Without the lock: a million entries take seconds, and commits continue.
        for differences in index_differences(self._ledger, self._index):
            self._mark_missing(differences.missing)
            self._delete_unknown(differences.unknown)
        self._compared_start = starts_count

    def _settle(self) -> None:
        """Let go of an index of other dimensions, once the new one was compared with the ledger and nothing is left to
        add."""
        if self._guard.prepared and not self.may_lack_points:
            with self._lock:
                if not self._ledger.unindexed(1):
                    self._index.settle()

    def close(self) -> None:
        """Let go of the threads."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _remove_batch(self) -> bool:
        """Return whether there was anything to take out."""
        with self._lock:
            if not (batch := self._ledger.doomed_ids(_BATCH_COUNT)):
                return False
            self._removals += 1
            if self._guard.bound:
                self._guard.prepare_index()
                self._index.delete(batch)
            self._ledger.forget_entries(batch).result()
            return True

    def _read(self, after: int) -> _Batch:
        removals = self._removals
        return _Batch(after, removals, self._ledger.unindexed(_BATCH_COUNT, after))

    def _mark_missing(self, missing: Sequence[str]) -> None:
        for batch in batches(missing, _BATCH_COUNT):
            self._ledger.mark_unindexed(batch).result()
        metrics.REPAIRS.labels("unindexed_entry").inc(len(missing))

    def _delete_unknown(self, unknown: Sequence[str]) -> None:
        for batch in batches(unknown, _BATCH_COUNT):
            self._index.delete(batch)
        metrics.REPAIRS.labels("dangling_point").inc(len(unknown))


def batches(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """Yield consecutive parts of at most `count` items."""
    for start in range(0, len(items), count):
        yield items[start : start + count]


def _point(vectors: EntryVectors) -> VectorPoint:
    return VectorPoint(
        vectors.entry_id, vectors.pool, vectors.compatibility_keys, vectors.created_at, vectors.text, vectors.image
    )
