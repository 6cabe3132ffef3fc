"""Stores that are away cost cache hits, never requests."""

import asyncio
import threading
from pathlib import Path

import psutil
import pytest

from pentimento.domain.cache import CandidateStart
from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.shard_process import ShardProcess
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.upkeep.store_calls import StoreThreads
from tests.support.gateways import DIMENSION_COUNT, RunningGateway, attempt, embedding, running_gateway, scope
from tests.support.waiting import until

TIMEOUT_S = 120.0


def shard_of(gateway: RunningGateway) -> ShardProcess:
    index = gateway.process.stores.index
    assert isinstance(index, EdgeVectorIndex)
    assert index.process is not None
    return index.process


def index_process(gateway: RunningGateway) -> psutil.Process:
    pid = shard_of(gateway).pid
    assert pid is not None
    return psutil.Process(pid)


async def until_back(gateway: RunningGateway) -> None:
    """Return once the restarted index serves: an earlier call may still wait for the dead process."""
    await until(lambda: shard_of(gateway).start_count == 2)
    await asyncio.to_thread(shard_of(gateway).wait_ready, TIMEOUT_S)


async def test_many_lookups_with_stopped_index_all_time_out(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--part-wait-factor", "1") as gateway:
        await gateway.store(embedding(1))
        child = index_process(gateway)
        child.suspend()

        answers = await asyncio.gather(*(gateway.ask(embedding(1), scope()) for _ in range(100)))

        child.resume()
        assert all(answer.search_skipped for answer in answers)
        abandoned = CandidateStart(FromNoise(), "miss: search abandoned after 50 ms")
        # The index takes 64 calls at a time, and refuses the others.
        assert (abandoned,) in {answer.starts for answer in answers}


async def test_a_killed_index_misses_until_it_is_back(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await gateway.store(embedding(1))
    shard, child, looked = shard_of(gateway), index_process(gateway), threading.Event()
    spawn = shard._spawn
    monkeypatch.setattr(shard, "_spawn", lambda *wires: looked.wait(TIMEOUT_S) and spawn(*wires))
    child.kill()
    child.wait(TIMEOUT_S)

    missed = await gateway.lookup(embedding(1))

    looked.set()
    await until_back(gateway)
    assert missed.start == FromNoise()
    assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)


async def test_commit_without_an_index_is_found_later(gateway: RunningGateway) -> None:
    await gateway.store(embedding(0, 1))
    by = attempt()
    grant = await gateway.client.reserve(scope(), by)
    assert grant is not None
    child = index_process(gateway)
    child.kill()
    child.wait(TIMEOUT_S)

    await gateway.client.commit(scope(), by, gateway.upload(grant), embedding(1))

    await until_back(gateway)
    gateway.maintain()
    assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)
    assert gateway.problems() == []


async def test_unreadable_index_is_filled_by_the_next_round(gateway: RunningGateway, tmp_path: Path) -> None:
    await gateway.store(embedding(1))
    gateway.process.maintenance.run_round()
    child = index_process(gateway)
    child.suspend()
    for path in (tmp_path / "index" / f"v2-d{DIMENSION_COUNT}").rglob("*.json"):
        path.write_bytes(b"torn")
    child.kill()
    await until_back(gateway)

    gateway.process.maintenance.run_round()

    assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)
    assert gateway.problems() == []


async def test_lost_collection_is_made_and_filled_again(tmp_path: Path) -> None:
    from lab.fixtures.qdrant_double import running_qdrant_double

    with running_qdrant_double() as (url, server):
        async with running_gateway(tmp_path, "--index-url", f"{url}?collection=cache") as gateway:
            await gateway.store(embedding(1))
            server.collections.pop("cache").close()

            gateway.maintain()

            assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)
            assert gateway.problems() == []


async def test_points_that_no_entry_knows_leave_the_index(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    for path in tmp_path.glob("ledger.sqlite*"):
        path.unlink()

    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(0, 1))
        gateway.maintain()

        assert (await gateway.lookup(embedding(1))).start == FromNoise()
        assert gateway.problems() == []


async def test_gateway_misses_while_its_qdrant_server_is_away(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))

    async with running_gateway(tmp_path, "--index-url", "qdrant://127.0.0.1:1") as gateway:
        answer = await gateway.lookup(embedding(1))

        assert answer.start == FromNoise()
        assert answer.reason == "miss: the index is not ready"
        assert await gateway.client.reserve(scope(), attempt()) is not None


@pytest.mark.parametrize(("hanging", "name"), [(CacheLedger, "writes_stuck_s"), (StoreThreads, "stuck_s")])
async def test_reserve_is_refused_while_the_ledger_hangs(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, hanging: type, name: str
) -> None:
    """Abandoned calls would wait there, without a bound, until it answers."""
    asked: list[str] = []
    monkeypatch.setattr(hanging, name, 7.0)
    monkeypatch.setattr(Capacity, "refusal", lambda capacity, tenant: asked.append("refusal"))
    monkeypatch.setattr(CacheLedger, "reserve", lambda ledger, grant: asked.append("reserve"))

    grants = [await gateway.client.reserve(scope(), attempt(), timeout_s=TIMEOUT_S) for _ in range(3)]

    assert (grants, asked) == ([None] * 3, [])


async def test_commit_is_refused_while_the_ledger_hangs(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, asked = attempt(), list[str]()
    grant = await gateway.client.reserve(scope(), by)
    assert grant is not None
    captured = gateway.upload(grant)
    monkeypatch.setattr(CacheLedger, "writes_stuck_s", 7.0)
    monkeypatch.setattr(CacheLedger, "commit", lambda ledger, commit: asked.append("commit"))
    monkeypatch.setattr(CacheLedger, "release", lambda ledger, grant_id: asked.append("release"))

    with pytest.raises(Unavailable):
        await gateway.client.commit(scope(), by, captured, embedding(1), embedding(1), 0)
    with pytest.raises(Unavailable):
        await gateway.client.release(grant.grant_id)

    assert asked == []
