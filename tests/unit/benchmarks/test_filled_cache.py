"""Test that an interrupted filling continues."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import filled_cache
from benchmarks.filled_cache import DIMENSION_COUNT, KEY, SCOPE, FilledCache, chunks, entry_id, fill, fill_piece
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.vectors import Space, VectorQuery
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.shard_process import ShardProcess
from tests.support.searches import search_now

COUNT = 70


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilledCache:
    monkeypatch.setattr(filled_cache, "_CHUNK_COUNT", 20)
    monkeypatch.setattr(filled_cache, "_PAGE_COUNT", 8)
    return FilledCache(tmp_path / "filled", COUNT)


def test_fill_pieces_make_every_entry_findable(cache: FilledCache) -> None:
    counts = []
    while not cache.pointer.exists():
        counts.append(fill_piece(cache, 1, 40))

    assert counts == [40, 70, 70]
    assert_filled(cache)


def test_fill_after_killed_process_neither_loses_nor_repeats(
    cache: FilledCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, pages = filled_cache._put, iter(range(1000))

    def dying(builder: ShardProcess, first: int, part: filled_cache.Vectors) -> None:
        # The second page of the second part: its rows are in the ledger, its points are not.
        if next(pages) == 4 and builder.pid is not None:
            os.kill(builder.pid, signal.SIGKILL)
        put(builder, first, part)

    monkeypatch.setattr(filled_cache, "_put", dying)
    with pytest.raises(StoreUnavailable):
        fill(cache, 1)
    fill(cache, 1)

    assert_filled(cache)


def test_fill_without_disk_space_writes_nothing(cache: FilledCache) -> None:
    endless = FilledCache(cache.directory, 10**12)

    with pytest.raises(RuntimeError, match="are free"):
        fill_piece(endless, 1, 10)


def assert_filled(cache: FilledCache) -> None:
    ledger = open_cache_ledger(cache.ledger_url)
    rows = ledger.vectors_after(0, 2 * COUNT)
    assert [row.sequence for row in rows] == list(range(1, COUNT + 1))
    ledger.close()
    index = EdgeVectorIndex(cache.index)
    index.prepare(DIMENSION_COUNT)
    assert sorted(index.entry_ids()) == sorted(entry_id(number) for number in range(COUNT))
    for number, vector in every_vector(cache):
        query = VectorQuery(Space.TEXT, vector.tobytes(), (SCOPE.tenant,), (KEY,))
        assert [match.entry_id for match in search_now(index, query)] == [entry_id(number)]
    index.close()


def every_vector(cache: FilledCache) -> Iterator[tuple[int, filled_cache.Vectors]]:
    for first, part in chunks(cache.entries_count):
        for at, vector in enumerate(part):
            yield first + at, vector
