"""The index follows the ledger: what is new goes in, what is doomed comes out, what differs is put right."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
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
        self._lock = threading.Lock()
        self._thread = started_pool(1, "indexing")
        self._reader = started_pool(1, "indexing-reader")

    async def make_findable(self) -> None:
        """`index_new`, waited for a second at most: raises TimeoutError then, and the work goes on."""
        async with asyncio.timeout(_COMMIT_WAIT_S):
            await asyncio.get_running_loop().run_in_executor(self._thread, self.index_new)

    def index_new(self) -> None:
        """Put every live entry into the index that is not there yet, or is there under keys that it lost, in batches.
        While the index takes one, the next is read and the one before is marked."""
        with self._lock:
            self._guard.prepare_index()
            batch, marked = self._ledger.unindexed(_BATCH_COUNT), None
            try:
                while batch:
                    following = None
                    if len(batch) == _BATCH_COUNT:
                        following = self._reader.submit(self._ledger.unindexed, _BATCH_COUNT, batch[-1].sequence)
                    self._index.upsert([_point(vectors) for vectors in batch])
                    if marked is not None:
                        marked.result()
                    marked = self._ledger.mark_indexed(batch)
                    # Whoever commits what comes meanwhile has it indexed.
                    batch = following.result() if following is not None else []
            finally:
                # What the index took is marked before anybody hears that it refused the rest.
                if marked is not None:
                    marked.result()
        self._on_indexed()

    def remove_doomed(self) -> None:
        """Take doomed entries out of the index, then out of the ledger."""
        with self._lock:
            while batch := self._ledger.doomed_ids(_BATCH_COUNT):
                if self._guard.bound:
                    self._guard.prepare_index()
                    self._index.delete(batch)
                self._ledger.forget_entries(batch).result()

    def reconcile(self) -> None:
        """Make up for an index that was lost, replaced or restored: compare ids, both ways."""
        if not self._guard.bound:
            return
        self._guard.prepare_index()
        # Without the lock: a million entries take seconds, and commits go on.
        for differences in index_differences(self._ledger, self._index):
            self._mark_missing(differences.missing)
            self._delete_unknown(differences.unknown)

    def close(self) -> None:
        """Let go of the threads."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)

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
