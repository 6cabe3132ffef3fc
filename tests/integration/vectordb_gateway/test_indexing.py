"""New entries go into the index batch by batch, commits between two batches; what it did not take stays for the next
round."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors import VectorIndex, VectorPoint
from services.vectordb_gateway.upkeep import indexing
from tests.support.gateways import RunningGateway, attempt, embedding, running_gateway, scope


async def test_refused_entry_is_indexed_in_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(tmp_path) as gateway:
        ledger, index = gateway.process.stores.ledger, gateway.process.stores.index
        stored = await lost_entries(gateway, monkeypatch)
        upsert, taken = index.upsert, list[int]()

        def refuse_the_second(points: Sequence[VectorPoint]) -> None:
            taken.append(len(points))
            if len(taken) == 2:
                raise StoreUnavailable("vector index", "refused")
            upsert(points)

        monkeypatch.setattr(index, "upsert", refuse_the_second)
        with pytest.raises(StoreUnavailable, match="refused"):
            await asyncio.to_thread(gateway.process.indexing.index_new)
        left = [vectors.entry_id for vectors in ledger.unindexed(10)]
        await asyncio.to_thread(gateway.process.indexing.index_new)

        assert len(stored) == 6
        assert len(left) == 4
        assert taken == [2, 2, 2, 2]
        assert ledger.indexed_ids(stored) == set(stored)
        assert set(index.entry_ids()) == set(stored)


async def lost_entries(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Store six entries that the index takes again, in batches of two."""
    stored = [await gateway.store(embedding(number)) for number in range(1, 7)]
    gateway.process.stores.ledger.mark_unindexed(stored).result()
    monkeypatch.setattr(indexing, "_BATCH_COUNT", 2)
    return stored


class HeldIndex:
    """Let the upserts of an index through one by one; `taken` has the ids of each."""

    def __init__(self, index: VectorIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[list[str]] = []
        self._upsert = index.upsert
        self._entered, self._through = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(index, "upsert", self._held)

    def let_through(self, count: int = 1) -> None:
        for _ in range(count):
            self._through.release()

    async def entered(self) -> None:
        """Wait for the next upsert to begin."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=60)

    def _held(self, points: Sequence[VectorPoint]) -> None:
        self._entered.release()
        assert self._through.acquire(timeout=60)
        self.taken.append([point.entry_id for point in points])
        self._upsert(points)


async def waited_for(indexed: indexing.Indexing) -> None:
    """Wait until a thread waits for the index."""
    for _ in range(6000):
        if indexed._lock._gate.locked():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no thread waits for the index")


async def test_commit_does_not_wait_for_a_lost_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(tmp_path) as gateway:
        ledger, index = gateway.process.stores.ledger, gateway.process.stores.index
        lost = await lost_entries(gateway, monkeypatch)
        # As long as the test needs: the commit waits for the batch that the index is taking.
        monkeypatch.setattr(indexing, "_COMMIT_WAIT_S", 60.0)
        held = HeldIndex(index, monkeypatch)

        filling = asyncio.create_task(asyncio.to_thread(gateway.process.indexing.index_new))
        await held.entered()
        by = attempt()
        grant = await gateway.client.reserve(scope(), by)
        assert grant is not None
        committing = asyncio.create_task(
            gateway.client.commit(scope(), by, gateway.upload(grant), embedding(7), embedding(7))
        )
        await waited_for(gateway.process.indexing)
        held.let_through(2)
        new = await committing

        assert held.taken == [lost[:2], [new, lost[5]]]
        assert ledger.indexed_ids([new]) == {new}
        held.let_through(3)
        await filling
        assert ledger.indexed_ids(lost) == set(lost)


async def test_entry_removed_during_indexing_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:
        ledger, index = gateway.process.stores.ledger, gateway.process.stores.index
        lost = await lost_entries(gateway, monkeypatch)
        held = HeldIndex(index, monkeypatch)

        filling = asyncio.create_task(asyncio.to_thread(gateway.process.indexing.index_new))
        await held.entered()
        # The second batch, which holds the third entry, is read.
        await asyncio.wrap_future(gateway.process.indexing._reader.submit(lambda: None))
        ledger.doom([lost[2]], 0.0).result()
        removing = asyncio.create_task(asyncio.to_thread(gateway.process.indexing.remove_doomed))
        await waited_for(gateway.process.indexing)
        held.let_through(9)
        await removing
        await filling

        kept = {*lost} - {lost[2]}
        assert set(index.entry_ids()) == kept == ledger.indexed_ids(lost)
