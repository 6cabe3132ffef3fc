"""Reserve for a caller that leaves before the ledger answers."""

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection

from pentimento.domain.clock import SteadyClock, SystemClock
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.followed_cache import CacheChoice
from pentimento.policies.reuse_rules import ReuseRules
from pentimento.stores.ledger.cache import grants
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.objects import open_objects
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.entries.rules import PlannedCache
from services.vectordb_gateway.entries.writer import EntryWriting, ReservedRun
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.settings import CapacitySettings, GatewayBounds
from services.vectordb_gateway.upkeep.indexing import Indexing
from tests.support.gateways import attempt, scope
from tests.unit.vectordb_gateway.said_index import SaidIndex


async def test_grant_of_cancelled_call_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, objects = open_cache_ledger(f"sqlite:///{tmp_path}/ledger.sqlite"), open_objects(f"file://{tmp_path}")
    index = SaidIndex()
    guard = EncoderGuard(ledger, index)
    capacity = Capacity(ledger, objects, CapacitySettings(), GatewayBounds())
    planned = PlannedCache(CacheChoice(), ReuseRules(SelectionRules()))
    clock, indexing = SteadyClock(SystemClock()), Indexing(ledger, index, guard)
    writing = EntryWriting(ledger, guard, indexing, capacity, planned, 900.0, clock)
    add, begun, go_on = grants._ADD_GRANT.change, threading.Event(), threading.Event()

    def slow(connection: Connection, **values: object) -> int:
        begun.set()
        go_on.wait(60.0)
        return add(connection, **values)

    monkeypatch.setattr(grants._ADD_GRANT, "change", slow)
    asked = asyncio.create_task(writing.reserve(scope(), attempt(), ReservedRun()))
    await asyncio.to_thread(begun.wait, 60.0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    go_on.set()
    # The writer has finished the earlier jobs.
    await asyncio.wrap_future(ledger.unpin("tenant", "request"))

    assert ledger.totals().open_grant_count == 0
    indexing.close()
    ledger.close()
