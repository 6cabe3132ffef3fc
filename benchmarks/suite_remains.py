"""Find a suite's remains: files without a row, grants without a holder, sockets, half-written files."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pentimento.stores.objects.filesystem import FilesystemObjectStore
from pentimento.supervisor.state import StateDirectory

_RESULTS = "select image_key from journal_requests where image_key is not null"
_CACHED = "select key from cache_objects"
# names the store's owner (ADR 0003)
_MARK = "owner/journal"
_OPEN_GRANTS = "select count(*) from cache_grants where entry_id is null"


def orphan_objects(state: StateDirectory) -> list[str]:
    """Return keys, except the mark, that are neither a result in the journal nor cached in the gateway's ledger, once
    no request is open."""
    # The keys first: a row may be younger than this read, an object must not be.
    keys = list(FilesystemObjectStore(state.path / "objects").keys())
    named = column(state.path / "frontdoor.sqlite", _RESULTS) | column(state.path / "gateway.sqlite", _CACHED)
    return [key for key in keys if key not in named and key != _MARK]


def open_grants(state: StateDirectory) -> int:
    """Count the cache's reservations that are neither committed, released nor expired."""
    return int(next(iter(column(state.path / "gateway.sqlite", _OPEN_GRANTS))))


def column(database: Path, query: str) -> set[str]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30.0)) as connection:
        return {row[0] for row in connection.execute(query)}


def half_written(state: StateDirectory) -> list[str]:
    """Return files that were begun and not finished by a rename."""
    staged = (state.path / "objects" / "staging").iterdir()
    return [str(path.relative_to(state.path)) for path in (*staged, *state.path.rglob("*.new"))]


def left_after_the_end(state: StateDirectory) -> Iterator[str]:
    """Yield sockets and the files that announce a running suite; for a suite that has stopped."""
    yield from map(str, state.sockets.iterdir() if state.sockets.exists() else ())
    yield from map(str, state.path.rglob("*.sock"))
    yield from (str(file) for file in state.endpoint_files if file.exists())
