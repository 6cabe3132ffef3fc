"""Hanging calls do not delay others, and the process reports them."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from pentimento.stores.errors import StoreUnavailable
from services.vectordb_gateway.upkeep import store_calls
from services.vectordb_gateway.upkeep.store_calls import StallWatch, StoreThreads, WatchedStore
from tests.support.logged import said_by


@pytest.fixture
def threads() -> Iterator[StoreThreads]:
    made = StoreThreads(2, "ledger")
    yield made
    made.close()


async def test_a_call_s_result_and_error_come_back(threads: StoreThreads) -> None:
    assert await threads.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 7, 0)
    assert threads.stuck_s == 0


async def test_no_call_is_taken_while_one_hangs(threads: StoreThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def hang() -> str:
        began.set()
        goes_on.wait()
        return "done"

    hanging = asyncio.create_task(threads.run(hang))
    await asyncio.to_thread(began.wait)
    # A moment ago it began: others are taken as long as that is no hang.
    monkeypatch.setattr(store_calls, "_STUCK_S", 600.0)
    assert await threads.run(abs, -1) == 1
    monkeypatch.setattr(store_calls, "_STUCK_S", 0.0)

    with pytest.raises(StoreUnavailable, match="has not returned"):
        await threads.run(abs, -1)
    assert threads.stuck_s > 0

    goes_on.set()
    assert await hanging == "done"
    assert await threads.run(abs, -1) == 1


async def test_cancelled_caller_leaves_the_thread_to_its_call(threads: StoreThreads) -> None:
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        goes_on.wait()
        ended.set()

    hanging = asyncio.create_task(threads.run(hang))
    await asyncio.to_thread(began.wait)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert threads.stuck_s > 0

    goes_on.set()
    await asyncio.to_thread(ended.wait)


class Waits:
    def __init__(self) -> None:
        self.reads_s = self.maintenance_s = 0.0
        self.told: list[bool] = []

    def watch(self) -> StallWatch:
        stores = {
            "reads": WatchedStore(lambda: self.reads_s, hangs_s=6.0),
            "maintenance": WatchedStore(lambda: self.maintenance_s, hangs_s=100.0, serves=False),
        }
        return StallWatch(stores, self.told.append)


def test_health_follows_reads_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    waits = Waits()
    watch = waits.watch()

    for waits.reads_s in (0.0, 5.0, 7.0, 8.0, 0.0, 0.0):
        watch.look()

    assert waits.told == [False, True]
    records = said_by("services.vectordb_gateway.upkeep.store_calls", caplog)
    errors = [record.message for record in records if record.levelname == "ERROR"]
    assert errors == ["reads hangs; its calls are abandoned until it answers"]


def test_maintenance_that_hangs_is_shown_and_ends_no_service() -> None:
    waits = Waits()
    watch = waits.watch()

    waits.maintenance_s = 101.0
    watch.look()

    assert waits.told == []
    assert REGISTRY.get_sample_value("pentimento_gateway_stuck_seconds", {"what": "maintenance"}) == 101.0
