"""The index follows the ledger: what is new goes in, what is doomed comes out, what differs is put right."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from pentimento.rpc.thread_pools import started_pool
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import EntryVectors
from pentimento.stores.vectors import VectorIndex, VectorPoint
from services.vectordb_gateway import metrics
from services.vectordb_gateway.encoder_guard import EncoderGuard
from services.vectordb_gateway.index_differences import index_differences

T = TypeVar("T")

_BATCH_COUNT = 256
# A commit does not wait longer for its entry to become findable; a later round sees to it.
_COMMIT_WAIT_S = 1.0


@dataclass(frozen=True)
class _Batch:
    """Entries of the ledger whose numbers are above `after`, as it was when entries had been taken out `removals`
    times."""

    after: int
    removals: int
    entries: list[EntryVectors]


class _InTurn:
    """A lock that goes to whoever waits for it, not back to who has just held it."""

    def __init__(self) -> None:
        self._gate, self._lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._gate:
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Indexing:
    """Blocking but for `make_findable`. Methods raise StoreUnavailable and may be repeated."""

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
        """`index_newest`, waited for a second at most: raises TimeoutError then, and the work goes on."""
        async with asyncio.timeout(_COMMIT_WAIT_S):
            await asyncio.get_running_loop().run_in_executor(self._thread, self.index_newest)

    def index_newest(self) -> None:
        """Put the newest live entries into the index that are not there yet, a batch of them. What was there before
        and got lost is left to `index_new`: whoever commits does not wait for it."""
        with self._lock:
            self._guard.prepare_index()
            if batch := self._ledger.newest_unindexed(_BATCH_COUNT):
                self._index.upsert([_point(vectors) for vectors in batch])
                self._ledger.mark_indexed(batch).result()
        self._on_indexed()

    def index_new(self) -> None:
        """Put every live entry into the index that is not there yet, or is there under keys that it lost, in batches,
        between which commits have theirs put there. While the index takes one, the next is read and the one before is
        marked."""
        marked: Future[None] | None = None
        following: Future[_Batch] | None = self._reader.submit(self._read, -1)
        try:
            while following is not None:
                with self._lock:
                    # Another gateway may have stored the first entry of all.
                    self._guard.open()
                    batch = following.result()
                    if batch.removals != self._removals:
                        # Something that it holds may be gone from the ledger: nobody would take it out again.
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
            # What the index took is marked before anybody hears that it refused the rest.
            if marked is not None:
                marked.result()
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
        # Without the lock: a million entries take seconds, and commits go on.
        for differences in index_differences(self._ledger, self._index):
            self._mark_missing(differences.missing)
            self._delete_unknown(differences.unknown)
        self._compared_start = starts_count

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
    """Consecutive parts of at most `count` items."""
    for start in range(0, len(items), count):
        yield items[start : start + count]


def _point(vectors: EntryVectors) -> VectorPoint:
    return VectorPoint(
        vectors.entry_id, vectors.pool, vectors.compatibility_keys, vectors.created_at, vectors.text, vectors.image
    )
