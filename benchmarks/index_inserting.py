"""Insert 10,000 new entries into the embedded index, directly and from the ledger: a part of `cache_update`.

Processor time of this process and of the index's is reported with elapsed time: other load of the machine appears in
the second and hardly in the first.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.filled_cache import DIMENSION_COUNT, FilledCache, point, vectors, write_rows
from benchmarks.report import Figure, at_most, informative, measured
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.index_building import NO_BUILD
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.upkeep.indexing import Indexing

INSERT_COUNT = 10_000
_CLUSTERS_COUNT = 5_000


@dataclass(frozen=True)
class Insertion:
    """Store elapsed seconds and processor seconds."""

    took_s: float
    processor_s: float


def insert_figures(rounds: int) -> list[Figure]:
    """Return seconds for 10,000 entries that are durable and found afterwards; earlier entries stay in the index."""
    alone: list[Insertion] = []
    from_ledger: list[Insertion] = []
    with tempfile.TemporaryDirectory(prefix="pentimento-") as folder:
        for number in range(rounds):
            alone.append(inserted_alone(Path(folder) / "alone", number))
            from_ledger.append(inserted_from_ledger(Path(folder) / "ledger", number))
    ledger_s, alone_s = [one.took_s for one in from_ledger], [one.took_s for one in alone]
    processor_s = [one.processor_s for one in from_ledger]
    middle = statistics.median
    return [
        measured("from the ledger into the index, 10,000 entries", ledger_s, middle, at_most(1.0, "s")),
        measured("the same, processor time", processor_s, middle, informative("s")),
        measured("into the index alone, 10,000 entries", alone_s, middle, informative("s")),
    ]


def timed(index: EdgeVectorIndex, work: Callable[[], None]) -> Insertion:
    before_s, began = processor_s_of(index), time.perf_counter()
    work()
    return Insertion(round(time.perf_counter() - began, 4), round(processor_s_of(index) - before_s, 4))


def processor_s_of(index: EdgeVectorIndex) -> float:
    """Return processor seconds of this process and the index's."""
    if index.process is None or index.process.pid is None:
        raise RuntimeError("the index does not run")
    times = psutil.Process(index.process.pid).cpu_times()
    return time.process_time() + times.user + times.system


def inserted_alone(directory: Path, number: int) -> Insertion:
    index = EdgeVectorIndex(directory, building=NO_BUILD)
    index.prepare(DIMENSION_COUNT)
    first = number * INSERT_COUNT
    points = [point(first + at, each) for at, each in enumerate(vectors(INSERT_COUNT, _CLUSTERS_COUNT, number))]
    took = timed(index, lambda: index.upsert(points))
    index.close()
    return took


def inserted_from_ledger(directory: Path, number: int) -> Insertion:
    """Read, insert and mark in batches, as in the gateway's background round."""
    directory.mkdir(parents=True, exist_ok=True)
    cache = FilledCache(directory, 0)
    ledger = open_cache_ledger(cache.ledger_url)
    made = vectors(INSERT_COUNT, _CLUSTERS_COUNT, number)
    write_rows(cache.ledger_url, number * INSERT_COUNT, made, indexed=False)
    index = EdgeVectorIndex(cache.index, building=NO_BUILD)
    guard = EncoderGuard(ledger, index)
    guard.open()
    indexing = Indexing(ledger, index, guard)
    took = timed(index, indexing.index_new)
    if index.counts.points_count != (number + 1) * INSERT_COUNT:
        raise RuntimeError(f"the index holds {index.counts.points_count} points")
    indexing.close()
    index.close()
    ledger.close()
    return took
