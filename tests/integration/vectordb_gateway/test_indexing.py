"""New entries go into the index batch by batch; what it did not take stays for the next round."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors import VectorPoint
from services.vectordb_gateway import indexing
from tests.gateways import embedding, running_gateway


async def test_what_the_index_refused_goes_in_with_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:
        ledger, index = gateway.process.stores.ledger, gateway.process.stores.index
        for number in range(1, 7):
            await gateway.store(embedding(number))
        stored = ledger.entry_ids()
        ledger.mark_unindexed(stored).result()
        monkeypatch.setattr(indexing, "_BATCH_COUNT", 2)
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
