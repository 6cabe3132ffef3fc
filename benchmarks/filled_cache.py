"""Fill a cache with any number of entries for benchmarks: ledger, index, and vectors distributed as prompts'.

    python -m benchmarks.filled_cache --directory DIR [--entries 1000000] [--piece 100000]

The ledger's rows are written in bulk, equal to those of commits, and the index equals a built one. The object store
stays empty, since a lookup reads only the ledger. An interrupted filling continues: rows in ledger and index stay, and
each call may add a bounded piece. The build of the graph is one piece and starts again after an interruption.
"""

import argparse
import json
import math
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import insert, select, update

from pentimento.domain.cache import CacheScope, latent_key
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.vectors import IndexBuilding, VectorPoint
from pentimento.stores.vectors.generations import Generation, Generations
from pentimento.stores.vectors.index_building import needed_room_bytes
from pentimento.stores.vectors.shard_process import ShardProcess, ShardTiming

DIMENSION_COUNT = 512
ENCODER = "sha256:" + "e" * 64
RESUME_STEP = 25
LATENT_BYTES = 16_384
SCOPE = CacheScope(
    "tenant", "sha256:m", "sha256:v", "sha256:s", "epsilon", 512, 512, 7.5, "", 50
)  # fmt: skip
KEY = latent_key(SCOPE, RESUME_STEP)
_CHUNK_COUNT = 10_000
# Members of a cluster have cosine 0.8 to one another: sessions of people who refine a prompt.
_MEMBERS_COUNT = 20
_SPREAD = 0.5
# The filling process may get little processor time: slowness ends nothing here.
_BUILD_LIMIT_S = 24 * 3600.0
_START_LIMIT_S = 1800.0
_PATIENT = ShardTiming(hang_s=math.inf, send_s=1800.0, stop_s=1800.0)
_PAGE_COUNT = 1000
_SAID_COUNT = 50_000
# an entry's bytes in the ledger: vector, object, indexes
_ROW_BYTES = 5_000
_CREATED_AT = 1000.0

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class FilledCache:
    """Name the directories of a filled cache."""

    directory: Path
    entries_count: int

    @property
    def index(self) -> Path:
        return self.directory / "index"

    @property
    def pointer(self) -> Path:
        return self.index / f"v2-d{DIMENSION_COUNT}.current"

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.directory}/ledger.sqlite"


def vectors(count: int, clusters_count: int, seed: int) -> Vectors:
    """Return unit vectors (count, 512) in clusters; the clusters do not depend on the seed."""
    chance = np.random.default_rng(seed)
    chosen = chance.integers(0, clusters_count, count)
    made = np.empty((count, DIMENSION_COUNT), np.float32)
    for at, cluster in enumerate(chosen):
        centre = np.random.default_rng((7, int(cluster))).standard_normal(DIMENSION_COUNT, np.float32)
        made[at] = centre + _SPREAD * chance.standard_normal(DIMENSION_COUNT, np.float32)
    unit: Vectors = made / np.linalg.norm(made, axis=1, keepdims=True)
    return unit


def clusters_of(entries_count: int) -> int:
    return max(1, entries_count // _MEMBERS_COUNT)


def chunks(entries_count: int, first: int = 0) -> Iterator[tuple[int, Vectors]]:
    """Yield vectors in parts with the number of their first, from the part that contains `first`."""
    for begin in range(first - first % _CHUNK_COUNT, entries_count, _CHUNK_COUNT):
        count = min(_CHUNK_COUNT, entries_count - begin)
        yield begin, vectors(count, clusters_of(entries_count), seed=1 + begin)


def entry_id(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


def filled_in(folder: Path, entries_count: int) -> FilledCache:
    """Return the cache with that many entries from a folder; its pointer says whether it is filled."""
    return FilledCache(folder / f"filled-{entries_count}", entries_count)


def fill(cache: FilledCache, threads_count: int) -> FilledCache:
    """Fill ledger and index, continuing an interrupted filling."""
    while not cache.pointer.exists():
        fill_piece(cache, threads_count, cache.entries_count)
    return cache


def fill_piece(cache: FilledCache, threads_count: int, most_count: int) -> int:
    """Add the next entries, at most `most_count` (in parts of 10,000), or build the graph if all exist.

    Returns the number of entries in ledger and index. The points go directly to the process that builds the graph.
    Raises RuntimeError if the disk has no room.
    """
    cache.directory.mkdir(parents=True, exist_ok=True)
    _check_room(cache)
    open_cache_ledger(cache.ledger_url).close()
    with _held(Generations(cache.index, DIMENSION_COUNT)) as generations:
        path = _unfinished(generations, cache)
        builder = _builder(path, threads_count)
        try:
            there_count = _points_count(builder)
            if there_count < cache.entries_count:
                return _add(cache, builder, there_count, most_count)
            builder.call({"op": "optimise"}, timeout_s=_BUILD_LIMIT_S)
        finally:
            builder.close()
        generations.publish(Generation(path, cache.entries_count))
    return there_count


def _check_room(cache: FilledCache) -> None:
    needed = needed_room_bytes(cache.entries_count, DIMENSION_COUNT) + cache.entries_count * _ROW_BYTES
    there = sum(path.stat().st_size for path in cache.directory.rglob("*") if path.is_file())
    if (free := shutil.disk_usage(cache.directory).free) < needed - there:
        raise RuntimeError(f"{cache.entries_count:,} entries need {needed:,} bytes, {free:,} are free")


def _add(cache: FilledCache, builder: ShardProcess, there_count: int, most_count: int) -> int:
    """Add entries from the index's count on, durably part by part; return the new count."""
    rows_count = _rows_count(cache.ledger_url)
    until = there_count + most_count
    for first, part in chunks(cache.entries_count, there_count):
        if first >= until:
            break
        if first >= rows_count:
            write_rows(cache.ledger_url, first, part)
        for at in range(0, len(part), _PAGE_COUNT):
            _put(builder, first + at, part[at : at + _PAGE_COUNT])
        builder.call({"op": "flush"}, timeout_s=_BUILD_LIMIT_S)
        there_count = first + len(part)
    return there_count


@contextmanager
def _held(generations: Generations) -> Iterator[Generations]:
    generations.hold(_START_LIMIT_S)
    try:
        yield generations
    finally:
        generations.release()


def _unfinished(generations: Generations, cache: FilledCache) -> Path:
    """Return the directory of an interrupted filling, or a new path."""
    left = [path for path in cache.index.glob(f"{cache.pointer.stem}.g*") if re.fullmatch(r".*\.g\d+", path.name)]
    return max(left, default=generations.following())


def _rows_count(ledger_url: str) -> int:
    engine = open_engine(ledger_url)
    with engine.connect() as connection:
        count = connection.execute(select(tables.state.c.entry_count)).scalar_one()
    engine.dispose()
    return int(count)


def _points_count(builder: ShardProcess) -> int:
    return int(builder.call({"op": "count"}, timeout_s=_START_LIMIT_S).header["points"])


def _builder(path: Path, threads_count: int) -> ShardProcess:
    shape = json.dumps(IndexBuilding(threads_count=threads_count).shape())
    arguments = ("--directory", str(path), "--dimension-count", str(DIMENSION_COUNT), "--shape", shape)
    builder = ShardProcess(arguments, _PATIENT, restarts=False)
    builder.start()
    builder.wait_ready(_START_LIMIT_S)
    return builder


def _put(builder: ShardProcess, first: int, part: Vectors) -> None:
    points = [_described(first + at) for at in range(len(part))]
    builder.call({"op": "upsert", "points": points}, part.tobytes(), timeout_s=_BUILD_LIMIT_S)


def _described(number: int) -> dict[str, object]:
    """Return a point as the index sends it to its process."""
    payload = {"tenant": SCOPE.tenant, "compatibility_key": [KEY], "created_at": _CREATED_AT}
    return {"id": entry_id(number), "spaces": ["text"], "payload": payload}


def point(number: int, vector: Vectors) -> VectorPoint:
    return VectorPoint(entry_id(number), SCOPE.tenant, (KEY,), _CREATED_AT, vector.tobytes())


def write_rows(ledger_url: str, first: int, part: Vectors, indexed: bool = True) -> None:
    """Write entries with one latent each in one transaction, as after commits, or as after indexing."""
    entries = [_entry_row(first + at, vector, indexed) for at, vector in enumerate(part)]
    objects = [_object_row(entry_id(first + at)) for at in range(len(part))]
    counted = {
        "entry_count": tables.state.c.entry_count + len(entries),
        "object_count": tables.state.c.object_count + len(entries),
        "size_bytes": tables.state.c.size_bytes + LATENT_BYTES * len(objects),
        "sequence": first + len(entries),
    }
    encoder = {"space": "text", "encoder_digest": ENCODER, "dimension_count": DIMENSION_COUNT}
    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(insert(tables.entries), entries)
        connection.execute(insert(tables.objects), objects)
        connection.execute(update(tables.state).values(counted))
        if connection.execute(select(tables.encoders)).first() is None:
            connection.execute(insert(tables.encoders), [encoder])
    engine.dispose()


def _entry_row(number: int, vector: Vectors, indexed: bool) -> dict[str, object]:
    return {
        "entry_id": entry_id(number),
        "pool": SCOPE.tenant,
        "tenant": SCOPE.tenant,
        "created_at": time.time(),
        "sequence": number + 1,
        "ancestor_depth": 0,
        "text_vector": vector.tobytes(),
        "object_count": 1,
        "size_bytes": LATENT_BYTES,
        "indexed": int(indexed),
    }


def _object_row(of_entry: str) -> dict[str, object]:
    return {
        "key": f"cache/filled/{of_entry}",
        "grant_id": f"g-{of_entry}",
        "resume_step": RESUME_STEP,
        "entry_id": of_entry,
        "tenant": SCOPE.tenant,
        "compatibility_key": KEY,
        "sigma": 1.0,
        "digest": "sha256:" + "0" * 64,
        "size_bytes": LATENT_BYTES,
    }


def main() -> None:
    """Fill a cache piece by piece, printing the progress after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="of `cache_lookup --data`")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--piece", type=int, help="entries to add before the end (default: all, and the build)")
    parser.add_argument("--threads", type=int, default=2, help="of the build")
    options = parser.parse_args()
    cache = filled_in(options.directory, options.entries)
    while not cache.pointer.exists():
        began = time.monotonic()
        there_count = fill_piece(cache, options.threads, options.piece or _SAID_COUNT)
        took_s = time.monotonic() - began
        print(f"{there_count:,} of {cache.entries_count:,} entries, {took_s:.0f} s", flush=True)
        if options.piece:
            return
    print(f"filled: {cache.directory}")


if __name__ == "__main__":
    main()
