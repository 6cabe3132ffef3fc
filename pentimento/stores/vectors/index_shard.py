"""Hold a qdrant-edge shard in a child process: `python -m pentimento.stores.vectors.index_shard`.

It is a separate process because the shard's optimiser keeps the interpreter lock for as long as it runs. It speaks
frames (`frames`) over inherited sockets, handles one after the other, and dies with its parent. With `--shape` it makes
a shard for a graph (`optimise`), and does not serve; with `--yields` it has the lowest priority.
"""

import argparse
import ctypes
import fcntl
import json
import logging
import os
import select
import shutil
import signal
import socket
import time
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from pentimento.domain.embedding import Space
from pentimento.files.private_files import make_private_directory
from pentimento.stores.vectors.frames import BrokenWire, Frame, receive_frame, send_frame
from pentimento.stores.vectors.generations import LOCK_SUFFIX
from pentimento.stores.vectors.index import Dimensions, floats
from pentimento.stores.vectors.point_filters import filter_of, index_fields, with_digests

logger = logging.getLogger("index_shard")

_PR_SET_PDEATHSIG = 1
_SCROLL_COUNT = 1000
# If a filter leaves at most this many kilobytes of vectors (1,000 of 512 dimensions), all are compared.
_EXACT_BELOW_KB = 2_000
_NO_LIMIT_KB = 1_000_000_000
_LOWEST_PRIORITY = 19
# The graph is walked by int8 vectors: a quarter of the memory to read, and a third of the time. Twice the wanted number
# is then compared by the float32 ones, so that order and similarities are exact.
_QUANTILE = 0.99
_COMPARED_AGAIN = 2.0
# A batch of writes takes as long as some tens of searches, and its sender waits two seconds for room.
_MOST_PASSED_OVER = 16


class IndexShard:
    """Hold the shard, and an operation for each `op` of a frame."""

    def __init__(
        self, directory: Path, text: int, shape: dict[str, int] | None = None, image: int | None = None
    ) -> None:
        """`text` and `image` count the dimensions of each space, None: the same."""
        self._dimensions = Dimensions.given(text, image)
        self._shard = _open_shard(directory, self._dimensions, shape)
        self._operations: dict[str, Callable[[Frame], Frame]] = {
            "search": self._search,
            "upsert": self._upsert,
            "delete": self._delete,
            "ids": self._ids,
            "count": self._count,
            "export": self._export,
            "export_some": self._export_some,
            "optimise": self._optimise,
            "flush": self._flush,
        }

    def answer(self, frame: Frame) -> Frame:
        """Return the reply to a frame; a failure is reported in the reply and leaves the shard serving."""
        call = {"id": frame.header["id"]}
        try:
            made = self._operations[frame.header["op"]](frame)
        except Exception as error:  # the library raises bare Exceptions
            logger.exception("%s failed", frame.header.get("op"))
            return Frame(call | {"error": f"{type(error).__name__}: {error}"})
        return Frame(call | made.header, made.body)

    def close(self) -> None:
        """Flush and release."""
        self._shard.close()

    def _search(self, frame: Frame) -> Frame:
        header = frame.header
        if time.monotonic() > header["deadline"]:
            return Frame({"error": "the caller gave up already"})
        request = edge.QueryRequest(
            limit=header["limit"],
            query=edge.Query.Nearest(floats(frame.body), using=header["space"]),
            filter=filter_of(header["conditions"]),
            with_payload=False,
            params=_search_parameters(header["candidates"]),
        )
        return Frame({"matches": [(str(point.id), point.score) for point in self._shard.query(request)]})

    def _upsert(self, frame: Frame) -> Frame:
        described = frame.header["points"]
        vectors = self._vectors(frame.body, (Space(space) for each in described for space in each["spaces"]))
        points = [_point(each, vectors) for each in described]
        self._shard.update(edge.UpdateOperation.upsert_points(points))
        return Frame({})

    def _delete(self, frame: Frame) -> Frame:
        self._shard.update(edge.UpdateOperation.delete_points([uuid.UUID(id_) for id_ in frame.header["ids"]]))
        return Frame({})

    def _count(self, frame: Frame) -> Frame:
        return Frame({"points": self._shard.info().points_count})

    def _optimise(self, frame: Frame) -> Frame:
        """Build the graph, and leave everything on disk: the process may be killed once this is answered."""
        self._shard.optimize()
        self._shard.flush()
        return Frame({"points": self._shard.info().points_count})

    def _flush(self, frame: Frame) -> Frame:
        self._shard.flush()
        return Frame({})

    def _export(self, frame: Frame) -> Frame:
        """Return the next points whole, as an upsert takes them."""
        after = frame.header.get("after")
        request = edge.ScrollRequest(
            offset=uuid.UUID(after) if after else None,
            limit=frame.header["limit"],
            with_payload=True,
            with_vector=True,
        )
        records, following = self._shard.scroll(request)
        exported = _exported(records)
        return Frame(exported.header | {"next": str(following) if following else None}, exported.body)

    def _export_some(self, frame: Frame) -> Frame:
        """Return the existing points among the given ids, as `_export` does."""
        wanted: Any = [uuid.UUID(id_) for id_ in frame.header["ids"]]
        return _exported(self._shard.retrieve(wanted, with_payload=True, with_vector=True))

    def _ids(self, frame: Frame) -> Frame:
        first = frame.header["from"]
        request = edge.ScrollRequest(
            offset=uuid.UUID(first) if first else None, limit=_SCROLL_COUNT, with_payload=False, with_vector=False
        )
        records, following = self._shard.scroll(request)
        return Frame({"ids": [str(record.id) for record in records], "next": str(following) if following else None})

    def _vectors(self, body: bytes, spaces: Iterable[Space]) -> Iterator[list[float]]:
        start = 0
        for space in spaces:
            end = start + 4 * self._dimensions.of(space)
            yield floats(body[start:end])
            start = end


def _exported(records: "Sequence[edge.Record]") -> Frame:
    points: list[dict[str, Any]] = []
    body = bytearray()
    for record in records:
        vectors: Any = record.vector
        points.append({"id": str(record.id), "spaces": list(vectors), "payload": record.payload})
        for values in vectors.values():
            body += array("f", values).tobytes()
    return Frame({"points": points}, bytes(body))


def _search_parameters(candidates_count: int) -> "edge.SearchParams":
    again = edge.QuantizationSearchParams(rescore=True, oversampling=_COMPARED_AGAIN)
    return edge.SearchParams(hnsw_ef=candidates_count, quantization=again)


def _point(described: dict[str, Any], vectors: Iterator[list[float]]) -> "edge.Point":
    """Return a point; vectors follow one another in the body in the order of the points and of their `spaces`."""
    named: Any = {space: next(vectors) for space in described["spaces"]}
    return edge.Point(uuid.UUID(described["id"]), named, with_digests(described["payload"]))


def _open_shard(directory: Path, dimensions: Dimensions, shape: dict[str, int] | None) -> "edge.EdgeShard":
    """Load the shard, or make it. One that cannot be read is deleted: its owner fills a new one from the ledger."""
    if not directory.exists():
        return _create_shard(directory, dimensions, shape)
    try:
        return edge.EdgeShard.load(str(directory))
    except Exception:  # the library raises bare Exceptions
        logger.exception("the index cannot be read; it is filled again")
        shutil.rmtree(directory)
        return _create_shard(directory, dimensions, shape)


def _create_shard(directory: Path, dimensions: Dimensions, shape: dict[str, int] | None) -> "edge.EdgeShard":
    """Make a shard under another name and rename it, so that a crash leaves no half-made shard."""
    unfinished = directory.with_name(f"{directory.name}.unfinished-{os.getpid()}")
    unfinished.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(unfinished), _configuration(dimensions, shape))
    index_fields(shard)
    shard.close()
    unfinished.rename(directory)
    return edge.EdgeShard.load(str(directory))


def _configuration(dimensions: Dimensions, shape: dict[str, int] | None) -> "edge.EdgeConfig":
    """Return the configuration of a shard that is only written and compared; with a shape, of a shard that becomes one
    part with a graph and int8 vectors, at any size."""
    vectors = {
        space.value: edge.EdgeVectorParams(size=dimensions.of(space), distance=edge.Distance.Cosine) for space in Space
    }
    if shape is None:
        return edge.EdgeConfig(vectors=vectors, max_search_threads=1)
    graph = edge.HnswIndexConfig(
        m=shape["edges_count"],
        payload_m=shape["edges_count"],
        ef_construct=shape["candidates_count"],
        full_scan_threshold=_EXACT_BELOW_KB,
        max_indexing_threads=shape["threads_count"],
    )
    one_part = edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1, max_segment_size=_NO_LIMIT_KB)
    int8 = edge.ScalarQuantizationConfig(edge.ScalarType.Int8, quantile=_QUANTILE, always_ram=True)
    return edge.EdgeConfig(
        vectors=vectors, hnsw_config=graph, quantization_config=int8, optimizers=one_part, max_search_threads=1
    )


def _yield_to_everybody() -> None:
    """Run only on an idle processor. A process of low priority alone may keep its slice for milliseconds while a search
    that has just been woken waits."""
    os.nice(_LOWEST_PRIORITY)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the call above.
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Serve frames until the parent closes the wire."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--dimension-count", type=int, required=True, help="of texts")
    parser.add_argument("--image-dimension-count", type=int, help="of images; none: as of texts")
    parser.add_argument("--wire-fd", type=int, required=True)
    parser.add_argument("--search-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--shape", type=json.loads, help="of the graph to build: JSON; none for a shard that serves")
    parser.add_argument("--yields", action="store_true", help="run when nobody else wants the processor")
    arguments = parser.parse_args()
    _die_with_parent(arguments.parent)
    # Ctrl-C and the stop of a whole process group reach this process too; its parent says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.yields:
        _yield_to_everybody()
    directory = arguments.directory
    with _owner(directory.with_name(f"{directory.name}{LOCK_SUFFIX}")):
        wire, searches = (socket.socket(fileno=number) for number in (arguments.wire_fd, arguments.search_fd))
        sizes = (arguments.dimension_count, arguments.shape, arguments.image_dimension_count)
        _serve(wire, searches, IndexShard(directory, *sizes))


@contextmanager
def _owner(path: Path) -> Iterator[None]:
    """Wait until no other process has the shard open: a predecessor may still be dying."""
    make_private_directory(path.parent)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _serve(wire: socket.socket, searches: socket.socket, shard: IndexShard) -> None:
    """Serve searches before writes, which may be many batches. After a number of searches a waiting write comes first:
    callers that always search would keep it waiting until its sender kills the process."""
    ready, passed_over = select.poll(), 0
    for each in (wire, searches):
        ready.register(each, select.POLLIN)
    try:
        send_frame(wire, Frame({"id": 0}))
        while True:
            waiting = {number for number, _ in ready.poll()}
            writes_wait = wire.fileno() in waiting
            searching = searches.fileno() in waiting and not (writes_wait and passed_over == _MOST_PASSED_OVER)
            passed_over = passed_over + 1 if searching and writes_wait else 0
            asked = searches if searching else wire
            send_frame(asked, shard.answer(receive_frame(asked)))
    except BrokenWire:
        shard.close()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    main()
