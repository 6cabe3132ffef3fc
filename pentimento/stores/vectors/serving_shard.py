"""Hold the shard that serves, its writers, and the changes since a copy of it began."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.frames import Frame
from pentimento.stores.vectors.generations import Generation
from pentimento.stores.vectors.index_building import IndexCounts
from pentimento.stores.vectors.shard_process import ShardProcess

T = TypeVar("T")

UPDATE_TIMEOUT_S = 10.0
# A search waits for the update before it: small enough to take a few milliseconds.
BATCH_COUNT = 64


class ServingShard:
    """Use a shard's process, which another one may replace during searches. Thread-safe; writes alternate."""

    def __init__(self, process: ShardProcess, generation: Generation) -> None:
        self.process = process
        self.generation = generation
        self._writing = threading.Lock()
        self._copying = threading.Lock()
        self._noted: set[str] | None = None
        self._points_count = 0
        self._changed_count = 0

    def count(self) -> None:
        """Ask the shard how many points it has. Raises StoreUnavailable.

        The difference then counts as the changes since the build; replaced points are not in it.
        """
        with self._writing:
            self._points_count = points_of(self.process)
            self._changed_count = max(self._changed_count, abs(self._points_count - self.generation.built_count))

    @property
    def counts(self) -> IndexCounts:
        """Return how many points there are, at most, and how many were written since the last build."""
        return IndexCounts(self._points_count, self._changed_count)

    async def search(self, header: dict[str, Any], vector: bytes) -> Frame:
        """Return the reply to a search; the caller bounds the wait. Raises StoreUnavailable."""
        process = self.process
        try:
            return await process.search(header, vector)
        except StoreUnavailable:
            if process is self.process:
                raise
        # It was replaced during the search.
        return await self.process.search(header, vector)

    def read(self, header: dict[str, Any]) -> Frame:
        """Return the reply to a call that changes nothing. Raises StoreUnavailable."""
        return self.process.call(header, timeout_s=UPDATE_TIMEOUT_S)

    def write(self, header: dict[str, Any], body: bytes, entry_ids: Collection[str], added_count: int) -> None:
        """Make a change of the entries. Raises StoreUnavailable: whether it was made is not known then."""
        with self._writing:
            try:
                self.process.call(header, body, timeout_s=UPDATE_TIMEOUT_S)
            finally:
                # After the change, so that a copy of the entries from now on has it.
                if self._noted is not None:
                    self._noted.update(entry_ids)
                self._changed_count += len(entry_ids)
                self._points_count = max(0, self._points_count + added_count)

    @contextmanager
    def noting_changes(self) -> Iterator[None]:
        """Note from here on which entries change. One copy at a time: another one waits for its end."""
        with self._copying:
            with self._writing:
                self._noted = set()
            try:
                yield
            finally:
                with self._writing:
                    self._noted = None

    def take_noted(self) -> list[str]:
        """Return the entries that were noted, and forget them."""
        with self._writing:
            return self._take()

    @contextmanager
    def writes_held(self) -> Iterator[list[str]]:
        """Hold writes back, and give the entries that are still noted. Searches continue."""
        with self._writing:
            yield self._take()

    def replace(self, process: ShardProcess, generation: Generation, counts: IndexCounts) -> ShardProcess:
        """Serve from another process from the next call on; return the one before. Only while writes are held."""
        before, self.process = self.process, process
        self.generation = generation
        self._points_count, self._changed_count = counts.points_count, counts.changed_count
        return before

    def _take(self) -> list[str]:
        taken = sorted(self._noted or ())
        if self._noted is not None:
            self._noted = set()
        return taken


def points_of(process: ShardProcess) -> int:
    """Return how many points a shard has. Raises StoreUnavailable."""
    return int(process.call({"op": "count"}, timeout_s=UPDATE_TIMEOUT_S).header["points"])


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield consecutive parts, each small enough that a search may wait for it."""
    for start in range(0, len(items), BATCH_COUNT):
        yield items[start : start + BATCH_COUNT]
