"""Compare ledger and index while both change: differences are found, and pending changes are no difference."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache.records import EntryVectors
from pentimento.stores.vectors import VectorIndex, VectorPoint, open_vectors
from services.vectordb_gateway.upkeep import indexing
from tests.contract.stores.cache_records import VECTOR, add
from tests.support.gateways import embedding, running_gateway

UNKNOWN = [f"{digit}0000000-0000-4000-8000-000000000000" for digit in "04f"]


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CacheLedger, VectorIndex]]:
    """Empty ones, which are compared by ranges of four."""
    monkeypatch.setattr(indexing, "_PAGE_COUNT", 4)
    ledger, index = open_cache_ledger(f"sqlite:///{tmp_path}/ledger.sqlite"), open_vectors(f"edge://{tmp_path}/index")
    index.prepare(2)
    yield ledger, index
    index.close()
    ledger.close()


def put(index: VectorIndex, *entry_ids: str) -> None:
    index.upsert([VectorPoint(entry_id, "pool", ("free",), 1000.0, VECTOR) for entry_id in entry_ids])


def indexed(ledger: CacheLedger, index: VectorIndex, entries_count: int) -> list[str]:
    """Add `entries_count` entries to both; return their ids in order."""
    entry_ids = sorted(add(ledger, f"g{number}") for number in range(entries_count))
    put(index, *entry_ids)
    ledger.mark_indexed(ledger.unindexed(entries_count)).result()
    return entry_ids


def found(ledger: CacheLedger, index: VectorIndex) -> tuple[list[str], list[str]]:
    """Return all missing and all unknown entries."""
    differences = list(indexing.index_differences(ledger, index))
    missing = [entry_id for each in differences for entry_id in each.missing]
    return missing, [entry_id for each in differences for entry_id in each.unknown]


@pytest.mark.parametrize("entries_count", [0, 1, 4, 8, 11])
def test_stores_that_agree_do_not_differ(stores: tuple[CacheLedger, VectorIndex], entries_count: int) -> None:
    indexed(*stores, entries_count)

    assert found(*stores) == ([], [])


def test_what_differs_is_found_in_every_range(stores: tuple[CacheLedger, VectorIndex]) -> None:
    ledger, index = stores
    entry_ids = indexed(ledger, index, 11)
    index.delete([entry_ids[0], entry_ids[3], entry_ids[10]])
    put(index, *UNKNOWN)

    assert found(ledger, index) == ([entry_ids[0], entry_ids[3], entry_ids[10]], UNKNOWN)


def test_an_index_that_is_empty_lacks_all(stores: tuple[CacheLedger, VectorIndex]) -> None:
    ledger, index = stores
    entry_ids = indexed(ledger, index, 9)
    index.delete(entry_ids)

    assert found(ledger, index) == (entry_ids, [])


def test_doomed_entries_and_such_that_wait_are_not_missing(stores: tuple[CacheLedger, VectorIndex]) -> None:
    ledger, index = stores
    doomed = indexed(ledger, index, 5)[2]
    ledger.doom([doomed], 10.0).result()
    index.delete([doomed])
    add(ledger, "waits")

    assert found(ledger, index) == ([], [])


def test_closed_index_is_not_an_empty_one(
    stores: tuple[CacheLedger, VectorIndex],
) -> None:
    ledger, index = stores
    entry_ids = indexed(ledger, index, 9)
    differences = indexing.index_differences(ledger, index)

    assert list(next(differences).missing) == []
    index.close()
    with pytest.raises(StoreUnavailable):
        next(differences)

    assert ledger.indexed_ids(entry_ids) == set(entry_ids)


@pytest.mark.parametrize("seed", range(10))
def test_entry_added_during_comparison_is_no_difference(
    stores: tuple[CacheLedger, VectorIndex], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After each read new entries get their rows, their points and their marks."""
    ledger, index = stores
    indexed(ledger, index, 9)
    chance, names, in_index = Random(seed), map(str, count()), list[EntryVectors]()

    def go_on() -> None:
        new = [vectors for vectors in ledger.unindexed(100) if vectors not in in_index]
        step = chance.choice(["row", "point", "mark"])
        if step == "row":
            add(ledger, next(names))
        elif step == "point" and new:
            put(index, new[0].entry_id)
            in_index.append(new[0])
        elif step == "mark" and in_index:
            ledger.mark_indexed([in_index.pop(0)]).result()

    def go_on_after(store: Any, name: str) -> None:
        read = getattr(store, name)

        def going_on(*arguments: Any, **named: Any) -> Any:
            result = list(read(*arguments, **named))
            for _ in range(chance.randint(0, 4)):
                go_on()
            return set(result) if name == "indexed_ids" else result

        monkeypatch.setattr(store, name, going_on)

    go_on_after(index, "entry_ids")
    go_on_after(ledger, "entry_ids")
    go_on_after(ledger, "indexed_ids")

    assert found(ledger, index) == ([], [])


async def test_entries_become_findable_while_ledger_and_index_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
        stores, compares, may_go_on = gateway.process.stores, threading.Event(), threading.Event()
        read = stores.index.entry_ids

        def wait_and_read(*arguments: Any) -> Iterator[str]:
            compares.set()
            may_go_on.wait(60)
            return read(*arguments)

        monkeypatch.setattr(stores.index, "entry_ids", wait_and_read)
        comparison = asyncio.create_task(asyncio.to_thread(gateway.process.indexing.reconcile))
        await asyncio.to_thread(compares.wait, 60)
        await gateway.store(embedding(2))
        left = stores.ledger.unindexed(10)
        may_go_on.set()
        await comparison

    assert left == []
