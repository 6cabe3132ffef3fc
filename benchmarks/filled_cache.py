"""A cache with any number of entries in it, for benchmarks: vectors that lie as prompts do, ledger and index filled.

The ledger's rows are written in bulk, as commits would have made them, and the index as a build of it makes it. Nothing
lies in the object store: a lookup reads the ledger alone.
"""

import json
import math
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import insert, update

from pentimento.domain.cache import CacheScope, latent_key
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.vectors import IndexBuilding, VectorPoint
from pentimento.stores.vectors.generations import Generation, Generations
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
_BUILD_LIMIT_S = 4 * 3600.0
_START_LIMIT_S = 300.0
_STOP_LIMIT_S = 600.0
_PAGE_COUNT = 1000
_CREATED_AT = 1000.0

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class FilledCache:
    """Directories of a filled cache, and how long filling took, in seconds."""

    directory: Path
    entries_count: int
    insert_s: float
    build_s: float

    @property
    def index(self) -> Path:
        return self.directory / "index"

    @property
    def pointer(self) -> Path:
        return self.index / f"v1-d{DIMENSION_COUNT}.current"

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.directory}/ledger.sqlite"


def vectors(count: int, clusters_count: int, seed: int) -> Vectors:
    """Unit vectors (count, 512) of clusters; the same clusters whatever the seed."""
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


def chunks(entries_count: int) -> Iterator[tuple[int, Vectors]]:
    """The vectors of all entries, in parts with the number of their first."""
    for first in range(0, entries_count, _CHUNK_COUNT):
        count = min(_CHUNK_COUNT, entries_count - first)
        yield first, vectors(count, clusters_of(entries_count), seed=1 + first)


def entry_id(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


def fill(directory: Path, entries_count: int, threads_count: int) -> FilledCache:
    """Ledger and built index with that many entries: the points go straight to the process that builds the graph."""
    directory.mkdir(parents=True, exist_ok=True)
    cache = FilledCache(directory, entries_count, 0.0, 0.0)
    open_cache_ledger(cache.ledger_url).close()
    generations = Generations(cache.index, DIMENSION_COUNT)
    generations.hold(_START_LIMIT_S)
    generations.clean()
    path = generations.following()
    builder = _builder(path, threads_count)
    insert_s = 0.0
    for first, part in chunks(entries_count):
        write_rows(cache.ledger_url, first, part)
        began = time.monotonic()
        for at in range(0, len(part), _PAGE_COUNT):
            _put(builder, first + at, part[at : at + _PAGE_COUNT])
        insert_s += time.monotonic() - began
    began = time.monotonic()
    builder.call({"op": "optimise"}, timeout_s=_BUILD_LIMIT_S)
    builder.close()
    generations.publish(Generation(path, entries_count))
    generations.release()
    return FilledCache(directory, entries_count, insert_s, time.monotonic() - began)


def _builder(path: Path, threads_count: int) -> ShardProcess:
    shape = json.dumps(IndexBuilding(threads_count=threads_count).shape())
    arguments = ("--directory", str(path), "--dimension-count", str(DIMENSION_COUNT), "--shape", shape)
    builder = ShardProcess(arguments, ShardTiming(hang_s=math.inf, stop_s=_STOP_LIMIT_S), restarts=False)
    builder.start()
    builder.wait_ready(_START_LIMIT_S)
    return builder


def _put(builder: ShardProcess, first: int, part: Vectors) -> None:
    points = [_described(first + at) for at in range(len(part))]
    builder.call({"op": "upsert", "points": points}, part.tobytes(), timeout_s=_BUILD_LIMIT_S)


def _described(number: int) -> dict[str, object]:
    """A point as the index sends it to its process."""
    payload = {"tenant": SCOPE.tenant, "compatibility_key": [KEY], "created_at": _CREATED_AT}
    return {"id": entry_id(number), "spaces": ["text"], "payload": payload}


def point(number: int, vector: Vectors) -> VectorPoint:
    return VectorPoint(entry_id(number), SCOPE.tenant, (KEY,), _CREATED_AT, vector.tobytes())


def write_rows(ledger_url: str, first: int, part: Vectors, indexed: bool = True) -> None:
    """Entries with one latent each, as commits leave them or the index took them, in one transaction."""
    entries = [_entry_row(first + at, vector, indexed) for at, vector in enumerate(part)]
    objects = [_object_row(entry_id(first + at)) for at in range(len(part))]
    counted = {
        "entry_count": tables.state.c.entry_count + len(entries),
        "object_count": tables.state.c.object_count + len(entries),
        "size_bytes": tables.state.c.size_bytes + LATENT_BYTES * len(objects),
        "sequence": first + len(entries),
        "encoder_digest": ENCODER,
        "dimension_count": DIMENSION_COUNT,
    }
    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(insert(tables.entries), entries)
        connection.execute(insert(tables.objects), objects)
        connection.execute(update(tables.state).values(counted))
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
        "compatibility_key": KEY,
        "sigma": 1.0,
        "digest": "sha256:" + "0" * 64,
        "size_bytes": LATENT_BYTES,
    }
