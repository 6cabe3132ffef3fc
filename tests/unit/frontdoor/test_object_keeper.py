"""Objects that wait in the journal for their store: known after a restart, counted, without an address."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from pentimento.domain.errors import ResourceExhausted
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import Journal
from pentimento.stores.objects import ObjectStore, open_objects
from services.frontdoor.objects import object_keeper
from services.frontdoor.objects.object_keeper import ObjectKeeper

# Bytes that wait for the store, and seconds that it may take.
LIMITS = (120, 2.0)


def away() -> ObjectStore:
    raise StoreUnavailable("object store", "it is away")


@asynccontextmanager
async def keeping(journal: Journal, open_store: Callable[[], ObjectStore]) -> AsyncIterator[ObjectKeeper]:
    """Run a keeper that has recovered and moves waiting objects."""
    keeper = ObjectKeeper(open_store, journal.objects, *LIMITS)
    await keeper.recover()
    moving = asyncio.create_task(keeper.move_forever())
    yield keeper
    moving.cancel()
    await asyncio.wait([moving])
    keeper.close()


async def waiting_keys(journal: Journal) -> list[str]:
    return [one.object.key for one in await asyncio.wrap_future(journal.objects.spooled())]


async def kept_while_away(journal: Journal, *keys: str) -> list[ObjectReference]:
    async with keeping(journal, away) as keeper:
        return [await keeper.put("acme", key, b"a picture") for key in keys]


async def test_waiting_object_is_moved_by_next_frontdoor(journal: Journal, tmp_path: Path) -> None:
    (reference,) = await kept_while_away(journal, "results/a")
    store = open_objects(f"file://{tmp_path}/objects")

    async with keeping(journal, lambda: store):
        async with asyncio.timeout(60):
            while await waiting_keys(journal):
                pass

    assert store.get(reference) == b"a picture"


async def test_waiting_object_has_no_address(journal: Journal) -> None:
    async with keeping(journal, away) as keeper:
        reference = await keeper.put("acme", "results/a", b"a picture")

        with pytest.raises(StoreUnavailable, match="the object waits for it"):
            await keeper.presign(reference, "image/png", 2_000_000_000)


async def test_waiting_object_is_read_from_journal(journal: Journal) -> None:
    (reference,) = await kept_while_away(journal, "results/a")

    async with keeping(journal, away) as keeper:
        assert await keeper.get(reference) == b"a picture"


async def test_tenant_may_fill_its_share_of_waiting_bytes(journal: Journal) -> None:
    async with keeping(journal, away) as keeper:
        await keeper.put("acme", "results/a", bytes(60))

        with pytest.raises(ResourceExhausted, match="of this tenant"):
            await keeper.put("acme", "results/b", b"1")
        await keeper.put("another", "results/c", bytes(59))
        await keeper.put("third", "results/d", b"1")
        with pytest.raises(ResourceExhausted):
            await keeper.put("fourth", "results/e", b"1")

    assert await waiting_keys(journal) == ["results/a", "results/c", "results/d"]


async def test_deleted_waiting_object_frees_its_bytes(journal: Journal) -> None:
    async with keeping(journal, away) as keeper:
        await keeper.put("acme", "results/a", bytes(60))
        await keeper.delete("results/a")

        await keeper.put("acme", "results/b", bytes(60))

    assert await waiting_keys(journal) == ["results/b"]


class HangingStore:
    """A store like a lost network disk: no call returns before `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.asked: list[str] = []

    def delete(self, key: str) -> None:
        self.asked.append(key)
        self.goes_on.wait(60)


async def test_no_calls_queue_while_all_threads_hang(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Abandoned calls would wait in the queue as long as the threads hang, with all later calls."""
    monkeypatch.setattr(object_keeper, "_READ_TIMEOUT_S", 600.0)
    monkeypatch.setattr(object_keeper, "_STUCK_S", 0.0)
    store = HangingStore()
    keeper = ObjectKeeper(lambda: cast(ObjectStore, store), journal.objects, *LIMITS)
    hanging = [asyncio.create_task(keeper.delete("results/a")) for _ in range(object_keeper._THREAD_COUNT)]
    while len(store.asked) < object_keeper._THREAD_COUNT:  # noqa: ASYNC110 - other threads
        await asyncio.sleep(0.001)

    monkeypatch.setattr(object_keeper, "_READ_TIMEOUT_S", 0.05)
    await asyncio.gather(*(keeper.delete("results/b") for _ in range(20)))

    waiting = keeper._threads._work_queue.qsize()
    store.goes_on.set()
    await asyncio.gather(*hanging)
    keeper.close()
    assert waiting == 0


async def test_store_is_listed_in_parts_each_with_time_limit(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of millions takes longer than any limit that one call can have."""
    store = open_objects(f"file://{tmp_path}/objects")
    keys = {store.put(f"results/{number}", b"a picture").key for number in range(5)}
    store.put("inputs/1", b"a picture")
    monkeypatch.setattr(object_keeper, "LISTED_AT_ONCE", 2)

    async with keeping(journal, lambda: store) as keeper:
        parts = [part async for part in keeper.keys("results/")]

    assert [len(part) for part in parts] == [2, 2, 1]
    assert {key for part in parts for key in part} == keys
