"""Serve the embedded index: a qdrant-edge shard in a child process, for one gateway.

    <directory>/v1-d<dimension count>…      the shards (`generations`); the ledger can always refill them

A small index is compared vector by vector. A larger one is rebuilt with a graph whenever enough has changed: in a
second process, which catches up with later writes and replaces the serving one (`rebuild`).
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.vectors.generations import Generations
from pentimento.stores.vectors.index import VectorMatch, VectorPoint, VectorQuery, ids_between
from pentimento.stores.vectors.index_building import IndexBuilding, IndexCounts
from pentimento.stores.vectors.rebuild import OnPhase, Rebuild
from pentimento.stores.vectors.rebuild_schedule import RebuildSchedule
from pentimento.stores.vectors.serving_shard import ServingShard, batches
from pentimento.stores.vectors.shard_process import DEFAULT_TIMING, ShardProcess, ShardTiming
from pentimento.stores.vectors.unit_vectors import check_points, check_vector

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 20.0
DEFAULT_BUILDING = IndexBuilding()


def _ignore(phase: str) -> None:
    return


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
        self._serving: ServingShard | None = None
        self._generations: Generations | None = None
        self._schedule: RebuildSchedule | None = None
        self._dimension_count = 0
        self._closed = False

    @property
    def process(self) -> ShardProcess | None:
        """Return the child, once there is one."""
        return None if self._serving is None else self._serving.process

    @property
    def starts_count(self) -> int:
        """Return how often the child was started."""
        return 0 if self._serving is None else self._serving.process.start_count

    @property
    def counts(self) -> IndexCounts:
        """Return how many points there are, and how many were written since the last build."""
        return IndexCounts(0, 0) if self._serving is None else self._serving.counts

    @property
    def schedule(self) -> RebuildSchedule | None:
        """Return the schedule of builds, once there is one."""
        return self._schedule

    def prepare(self, dimension_count: int) -> None:
        """Start the child and open the index. Raises SchemaMismatch when it holds vectors of another size."""
        with self._lock:
            if self._serving is None:
                self._serving = self._start(dimension_count)
            elif dimension_count != self._dimension_count:
                raise SchemaMismatch("vector index", f"it holds vectors of {self._dimension_count} dimensions")
            serving = self._serving
        serving.process.wait_ready(_START_TIMEOUT_S)
        with self._lock:
            if self._schedule is None and self._generations is not None:
                serving.count()
                self._schedule = self._scheduled(serving, self._generations)

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        """Return the nearest points, best first. The child skips a search that it reads after `timeout_s`; the caller
        bounds the wait."""
        serving = self._serving
        if serving is None:
            return []
        check_vector("vector", query.vector, self._dimension_count)
        reply = await serving.search(self._search_header(query, timeout_s), query.vector)
        return [VectorMatch(entry_id, similarity) for entry_id, similarity in reply.header["matches"]]

    def upsert(self, points: Sequence[VectorPoint]) -> None:
        """Insert or replace points."""
        check_points(points, self._dimension_count)
        for batch in batches(points):
            header = {"op": "upsert", "points": [_described(point) for point in batch]}
            body = b"".join(point.text + (point.image or b"") for point in batch)
            self._write(header, body, [point.entry_id for point in batch], len(batch))

    def delete(self, entry_ids: Sequence[str]) -> None:
        """Delete points; ids that are not there are ignored."""
        for batch in batches(entry_ids):
            self._write({"op": "delete", "ids": list(batch)}, b"", batch, -len(batch))

    def entry_ids(self, after: str = "", until: str | None = None) -> Iterator[str]:
        """Yield the ids above `after` up to `until` (None: to the end), in ascending order."""
        first = after
        while (serving := self._serving) is not None:
            page = serving.read({"op": "ids", "from": first}).header
            yield from ids_between(page["ids"], after, until)
            first = page["next"]
            if first is None or (until is not None and first > until):
                return
        if self._closed:
            # Missing ids must not look like missing points.
            raise StoreUnavailable("vector index", "it is closed")

    def close(self) -> None:
        """End the child, which flushes first, and any build."""
        with self._lock:
            self._closed = True
            serving, self._serving = self._serving, None
            schedule, self._schedule = self._schedule, None
            generations, self._generations = self._generations, None
        if schedule is not None:
            schedule.close()
        if serving is not None:
            serving.process.close()
        if generations is not None:
            generations.release()

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

    def _start(self, dimension_count: int) -> ServingShard:
        generations = Generations(self._directory, dimension_count)
        generations.hold(_START_TIMEOUT_S)
        if leftovers := generations.clean():
            logger.info("deleted what an unfinished build left: %s", ", ".join(leftovers))
        current = generations.current()
        arguments = ("--directory", str(current.path), "--dimension-count", str(dimension_count))
        process = ShardProcess(arguments, self._timing)
        process.start()
        self._generations, self._dimension_count = generations, dimension_count
        return ServingShard(process, current)

    def _scheduled(self, serving: ServingShard, generations: Generations) -> RebuildSchedule:
        new_rebuild = partial(
            Rebuild, serving, generations, self._dimension_count, self._building, self._timing, self._on_phase
        )
        schedule = RebuildSchedule(serving, self._building, new_rebuild)
        schedule.start()
        return schedule

    def _write(self, header: dict[str, Any], body: bytes, entry_ids: Sequence[str], added_count: int) -> None:
        if self._serving is None:
            raise SchemaMismatch("vector index", "it was not prepared for any vector size")
        self._serving.write(header, body, entry_ids, added_count)
        if self._schedule is not None:
            self._schedule.look()


def _described(point: VectorPoint) -> dict[str, Any]:
    return {
        "id": point.entry_id,
        "spaces": ["text"] if point.image is None else ["text", "image"],
        "payload": point.payload(),
    }
