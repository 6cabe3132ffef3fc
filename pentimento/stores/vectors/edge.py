"""The embedded index: a qdrant-edge shard in a child process, for one gateway.

    <directory>/v1-d<dimension count>/      the shard; it can always be filled anew from the ledger

Searches compare with every point of the tenant (no optimiser runs): about 10 ms at 100,000 points of 512 dimensions.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from pentimento.stores.errors import SchemaMismatch
from pentimento.stores.vectors.index import VectorMatch, VectorPoint, VectorQuery, check_vector
from pentimento.stores.vectors.shard_process import DEFAULT_TIMING, ShardProcess, ShardTiming

T = TypeVar("T")

_START_TIMEOUT_S = 20.0
_UPDATE_TIMEOUT_S = 10.0
# A search waits for the update before it: small enough to take a few milliseconds.
_BATCH_COUNT = 64


class EdgeVectorIndex:
    """An index in a child process, as the module's docstring says. The child starts with `prepare` and is started again
    whenever it dies."""

    backend = "qdrant-edge"

    def __init__(self, directory: Path, timing: ShardTiming = DEFAULT_TIMING) -> None:
        self._directory = directory
        self._timing = timing
        self._lock = threading.Lock()
        self._process: ShardProcess | None = None
        self._dimension_count = 0

    @property
    def process(self) -> ShardProcess | None:
        """The child, once there is one."""
        return self._process

    def prepare(self, dimension_count: int) -> None:
        """Start the child and open the index. Raises SchemaMismatch when it holds vectors of another size."""
        with self._lock:
            self._check_dimensions(dimension_count)
            if self._process is None:
                self._process = self._start(dimension_count)
        self._process.wait_ready(_START_TIMEOUT_S)

    def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        """Return the nearest points, best first. Raises StoreUnavailable after `timeout_s`."""
        if self._process is None:
            return []
        check_vector("vector", query.vector, self._dimension_count)
        header = {
            "op": "search",
            "space": query.space.value,
            "conditions": query.conditions(),
            "limit": query.limit_count,
            # Both processes read the same monotonic clock: a search that nobody waits for is skipped.
            "deadline": monotonic() + timeout_s,
        }
        reply = self._process.call(header, query.vector, timeout_s=timeout_s)
        return [VectorMatch(entry_id, similarity) for entry_id, similarity in reply.header["matches"]]

    def upsert(self, points: Sequence[VectorPoint]) -> None:
        """Insert or replace points."""
        for point in points:
            check_vector("text", point.text, self._dimension_count)
            if point.image is not None:
                check_vector("image", point.image, self._dimension_count)
        for batch in _batches(points):
            header = {"op": "upsert", "points": [_described(point) for point in batch]}
            body = b"".join(point.text + (point.image or b"") for point in batch)
            self._call(header, body)

    def delete(self, entry_ids: Sequence[str]) -> None:
        """Delete points; ids that are not there are ignored."""
        for batch in _batches(entry_ids):
            self._call({"op": "delete", "ids": list(batch)})

    def entry_ids(self) -> Iterator[str]:
        """Yield every id, in no order."""
        header: dict[str, Any] = {"op": "ids"}
        while self._process is not None:
            page = self._call(header)
            yield from page["ids"]
            if page["next"] is None:
                return
            header = {"op": "ids", "after": page["next"]}

    def close(self) -> None:
        """End the child, which flushes first."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _check_dimensions(self, dimension_count: int) -> None:
        found = [path.name for path in self._directory.glob("v1-d*") if path.name.count(".") == 0]
        if any(name != f"v1-d{dimension_count}" for name in found):
            raise SchemaMismatch("vector index", f"it holds {found[0]}, not vectors of {dimension_count} dimensions")

    def _start(self, dimension_count: int) -> ShardProcess:
        shard = self._directory / f"v1-d{dimension_count}"
        arguments = ("--directory", str(shard), "--dimension-count", str(dimension_count))
        process = ShardProcess(arguments, self._timing)
        process.start()
        self._dimension_count = dimension_count
        return process

    def _call(self, header: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        if self._process is None:
            raise SchemaMismatch("vector index", "it was not prepared for any vector size")
        return self._process.call(header, body, timeout_s=_UPDATE_TIMEOUT_S).header


def _described(point: VectorPoint) -> dict[str, Any]:
    return {
        "id": point.entry_id,
        "spaces": ["text"] if point.image is None else ["text", "image"],
        "payload": {
            "tenant": point.tenant,
            "compatibility_key": point.compatibility_key,
            "created_at": point.created_at,
        },
    }


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _BATCH_COUNT):
        yield items[start : start + _BATCH_COUNT]
