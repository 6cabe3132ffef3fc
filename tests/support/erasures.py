"""Count the data of a tenant in the files of a frontdoor's and a gateway's stores."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from pentimento.stores.objects.pair_keys import pair_key


def rows(file: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a query of an SQLite file."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, values).fetchall()


def put_pair(folder: Path, tenant: str, at_s: float, data: bytes) -> None:
    """Store a compared pair as a frontdoor does."""
    put(folder, pair_key("light>heavy", tenant, at_s, data), data)


def put(folder: Path, key: str, data: bytes) -> Path:
    """Write the file of an object, as the store on a disk has it."""
    path = folder / "objects" / "objects" / hashlib.sha256(key.encode()).hexdigest()[:2] / key.replace("/", ".")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def counted(folder: Path, cache: Path | None, tenant: str) -> dict[str, tuple[int, int]]:
    """Return the number and the bytes of a tenant's things, by the receipt's kinds; only kinds that it has."""
    hashes = hashlib.sha256(tenant.encode()).hexdigest()
    inputs = list((folder / "objects").rglob(f"inputs.{hashes[:32]}.*"))
    pairs = [path for path in (folder / "objects").rglob("pairs.*") if f"-{hashes[:16]}." in path.name]
    requests = rows(folder / "journal.sqlite", "SELECT image_key FROM journal_requests WHERE tenant = ?", tenant)
    named = {key.replace("/", ".") for (key,) in requests if key}
    results = [path for path in (folder / "objects").rglob("results.*") if path.name in named]
    found = {
        "requests": (len(requests), 0),
        **{
            kind: _sizes(paths) for kind, paths in (("inputs", inputs), ("compared_pairs", pairs), ("results", results))
        },
    }
    if cache is not None:
        found |= _counted_in_cache(cache, tenant)
    return {kind: sums for kind, sums in found.items() if sums[0]}


def object_count(folder: Path) -> int:
    """Return the number of a frontdoor's objects, whether a row names them or not."""
    return sum(1 for kind in ("results", "inputs", "pairs") for _ in (folder / "objects").rglob(f"{kind}.*"))


def objects_in(had: dict[str, tuple[int, int]]) -> int:
    """Return how many of a tenant's counted things are objects of a frontdoor."""
    return sum(had.get(kind, (0, 0))[0] for kind in ("results", "inputs", "compared_pairs"))


def _counted_in_cache(cache: Path, tenant: str) -> dict[str, tuple[int, int]]:
    ledger = cache / "ledger.sqlite"
    entries = rows(ledger, "SELECT text_vector, image_vector FROM cache_entries WHERE tenant = ?", tenant)
    vectors = [vector for pair in entries for vector in pair if vector is not None]
    objects = rows(ledger, "SELECT key, resume_step FROM cache_objects WHERE tenant = ?", tenant)
    files = {path.name: path for path in (cache / "objects").rglob("cache.*")}
    kept = [(files[key.replace("/", ".")], step) for key, step in objects if key.replace("/", ".") in files]
    return {
        "cache_entries": (len(entries), 0),
        "cache_vectors": (len(vectors), sum(map(len, vectors))),
        "cache_latents": _sizes([path for path, step in kept if step is not None]),
        "cache_images": _sizes([path for path, step in kept if step is None]),
    }


def _sizes(paths: list[Path]) -> tuple[int, int]:
    return len(paths), sum(path.stat().st_size for path in paths)
