"""Serve the embedded index: a qdrant-edge shard in a child process, for one gateway.

    <directory>/v2-d<dimension count>…      the shards (`generations`); the ledger can always refill them

An index of other dimensions than the prepared ones has a second shard, which serves until the new one is complete.
A small index is compared vector by vector. A larger one is rebuilt with a graph whenever enough has changed: in a
second process, which catches up with later writes and replaces the serving one (`rebuild`).
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.vectors.generations import Generations, dimensions_in
from pentimento.stores.vectors.index import Dimensions, VectorMatch, VectorPoint, VectorQuery, ids_between
from pentimento.stores.vectors.index_building import IndexBuilding, IndexCounts
from pentimento.stores.vectors.rebuild import OnPhase, Rebuild
from pentimento.stores.vectors.rebuild_schedule import RebuildSchedule
from pentimento.stores.vectors.serving_shard import ServingShard, batches
from pentimento.stores.vectors.shard_process import DEFAULT_TIMING, ShardProcess, ShardTiming, shard_arguments
from pentimento.stores.vectors.unit_vectors import check_points, check_vector

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 20.0
DEFAULT_BUILDING = IndexBuilding()


def _ignore(phase: str) -> None:
    return


@dataclass
class OpenShard:
    """Hold the shard of one pair of dimensions, with its directories and its schedule of builds, once there is one."""

    dimensions: Dimensions
    serving: ServingShard
    generations: Generations
    schedule: RebuildSchedule | None = None

    def close(self) -> None:
        """End the child, which flushes first, and any build."""
        if self.schedule is not None:
            self.schedule.close()
        self.serving.process.close()
        self.generations.release()


class EdgeVectorIndex:
    """Serve an index from a child process, as the module's docstring says. The child starts with `prepare` and is
    started again whenever it dies."""

    backend = "qdrant-edge"

    def __init__(
        self,
        directory: Path,
        timing: ShardTiming = DEFAULT_TIMING,
        building: IndexBuilding = DEFAULT_BUILDING,
        on_phase: OnPhase = _ignore,
    ) -> None:
        self._directory = directory
        self._timing = timing
        self._building = building
        self._on_phase = on_phase
        self._lock = threading.Lock()
        self._open: OpenShard | None = None
        # The shard of other dimensions, which serves until the new one is settled.
        self._before: OpenShard | None = None
        # Starts of children that were replaced by those of other dimensions.
        self._earlier_starts_count = 0
        self._closed = False

    @property
    def process(self) -> ShardProcess | None:
        """Return the child, once there is one."""
        return None if self._open is None else self._open.serving.process

    @property
    def starts_count(self) -> int:
        """Return how often a child was started."""
        now = 0 if self._open is None else self._open.serving.process.start_count
        return self._earlier_starts_count + now

    @property
    def counts(self) -> IndexCounts:
        """Return how many points there are, and how many were written since the last build."""
        return IndexCounts(0, 0) if self._open is None else self._open.serving.counts

    @property
    def schedule(self) -> RebuildSchedule | None:
        """Return the schedule of builds, once there is one."""
        return None if self._open is None else self._open.schedule

    def prepare(self, text: int, image: int | None = None) -> None:
        """Start the child and open the index. An index of other dimensions serves on until `settle`, and the new one
        is empty at first. Raises StoreUnavailable."""
        dimensions = Dimensions.given(text, image)
        with self._lock:
            if self._open is None or self._open.dimensions != dimensions:
                self._replace(dimensions)
            opened, before = self._open, self._before
        assert opened is not None
        opened.serving.process.wait_ready(_START_TIMEOUT_S)
        if before is not None:
            # Without it searches miss until the new one is complete.
            with suppress(StoreUnavailable):
                before.serving.process.wait_ready(_START_TIMEOUT_S)
        with self._lock:
            if opened is self._open and opened.schedule is None:
                opened.serving.count()
                opened.schedule = self._scheduled(opened)

    def settle(self) -> None:
        """Close and delete the indexes of other dimensions."""
        with self._lock:
            if self._open is None:
                return
            before, self._before = self._before, None
            if before is not None:
                before.close()
            for dimensions in dimensions_in(self._directory):
                if dimensions != self._open.dimensions:
                    Generations(self._directory, dimensions.text, dimensions.image).delete()
                    logger.info("deleted the index of %s: the one of %s is complete", dimensions, self._open.dimensions)

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        """Return the nearest points, best first. The child skips a search that it reads after `timeout_s`; the caller
        bounds the wait."""
        opened, before = self._open, self._before
        if opened is None:
            return []
        dimension_count = opened.dimensions.of(query.space)
        check_vector("vector", query.vector, dimension_count)
        if before is not None and before.dimensions.of(query.space) == dimension_count:
            # Until the new one is complete.
            opened = before
        reply = await opened.serving.search(self._search_header(query, timeout_s), query.vector)
        return [VectorMatch(entry_id, similarity) for entry_id, similarity in reply.header["matches"]]

    def upsert(self, points: Sequence[VectorPoint]) -> None:
        """Insert or replace points."""
        check_points(points, self._opened().dimensions)
        for batch in batches(points):
            header = {"op": "upsert", "points": [_described(point) for point in batch]}
            body = b"".join(point.text + (point.image or b"") for point in batch)
            self._write(header, body, [point.entry_id for point in batch], len(batch))

    def delete(self, entry_ids: Sequence[str]) -> None:
        """Delete points; ids that are not there are ignored."""
        before = self._before
        for batch in batches(entry_ids):
            header = {"op": "delete", "ids": list(batch)}
            self._write(header, b"", batch, -len(batch))
            if before is not None:
                before.serving.write(header, b"", batch, -len(batch))

    def entry_ids(self, after: str = "", until: str | None = None) -> Iterator[str]:
        """Yield the ids above `after` up to `until` (None: to the end), in ascending order."""
        first = after
        while (opened := self._open) is not None:
            page = opened.serving.read({"op": "ids", "from": first}).header
            yield from ids_between(page["ids"], after, until)
            first = page["next"]
            if first is None or (until is not None and first > until):
                return
        if self._closed:
            # Missing ids must not look like missing points.
            raise StoreUnavailable("vector index", "it is closed")

    def close(self) -> None:
        """End the children, which flush first, and any build."""
        with self._lock:
            self._closed = True
            opened, self._open, self._before = (self._open, self._before), None, None
        for one in opened:
            if one is not None:
                one.close()

    def _search_header(self, query: VectorQuery, timeout_s: float) -> dict[str, Any]:
        return {
            "op": "search",
            "space": query.space.value,
            "conditions": query.conditions(),
            "limit": query.limit_count,
            "candidates": self._building.search_candidates_count,
            # Both processes read the same monotonic clock: an abandoned search is skipped.
            "deadline": monotonic() + timeout_s,
        }

    def _opened(self) -> OpenShard:
        if self._open is None:
            raise SchemaMismatch("vector index", "it was not prepared for any vector size")
        return self._open

    def _replace(self, dimensions: Dimensions) -> None:
        """Open the index for the dimensions; the former index keeps serving."""
        before, replaced = self._before, self._open
        if replaced is None:
            before = self._left_behind(dimensions)
        elif before is None:
            before = replaced
        else:
            # It was never complete.
            replaced.close()
        if before is not None and before.dimensions == dimensions:
            opened, before = before, None
        else:
            opened = self._start(dimensions)
        if replaced is not None:
            # Others see that the points may be fewer than before.
            self._earlier_starts_count += replaced.serving.process.start_count
        self._open, self._before = opened, before

    def _left_behind(self, dimensions: Dimensions) -> OpenShard | None:
        """Return an index of other dimensions that a former process did not see replaced; None without one."""
        for found in dimensions_in(self._directory):
            if found != dimensions and Generations(self._directory, found.text, found.image).current().path.is_dir():
                return self._start(found)
        return None

    def _start(self, dimensions: Dimensions) -> OpenShard:
        generations = Generations(self._directory, dimensions.text, dimensions.image)
        generations.hold(_START_TIMEOUT_S)
        if leftovers := generations.clean():
            logger.info("deleted what an unfinished build left: %s", ", ".join(leftovers))
        current = generations.current()
        process = ShardProcess(shard_arguments(current.path, dimensions), self._timing)
        process.start()
        return OpenShard(dimensions, ServingShard(process, current), generations)

    def _scheduled(self, opened: OpenShard) -> RebuildSchedule:
        parts = (opened.serving, opened.generations, opened.dimensions)
        new_rebuild = partial(Rebuild, *parts, self._building, self._timing, self._on_phase)
        schedule = RebuildSchedule(opened.serving, self._building, new_rebuild)
        schedule.start()
        return schedule

    def _write(self, header: dict[str, Any], body: bytes, entry_ids: Sequence[str], added_count: int) -> None:
        opened = self._opened()
        opened.serving.write(header, body, entry_ids, added_count)
        if opened.schedule is not None:
            opened.schedule.look()


def _described(point: VectorPoint) -> dict[str, Any]:
    return {
        "id": point.entry_id,
        "spaces": ["text"] if point.image is None else ["text", "image"],
        "payload": point.payload(),
    }
