"""Test two frontdoors over one journal: one active, the other a standby."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.fixtures.frontdoor_suite import LIMITS, REQUEST, FrontdoorSuite, running_suite, settings_of, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import Unavailable
from pentimento.domain.jobs import RequestState
from pentimento.rpc import open_channel
from pentimento.stores.ledger import Journal, open_journal
from services.frontdoor.journal.retention import Retention
from services.frontdoor.process import Frontdoor
from services.frontdoor.wiring import wire
from tests.support.calls import last_completed
from tests.support.lease_looks import LooksBetweenBeats

LEASE_S = 1.0


class SupersededSuite(NamedTuple):
    suite: FrontdoorSuite
    journal: Journal
    asked_to_stop: asyncio.Event


class Standby:
    def __init__(self, frontdoor: Frontdoor, client: ImageClient) -> None:
        self.frontdoor = frontdoor
        self.client = client
        self.active = asyncio.get_running_loop().create_task(frontdoor.warm())


@asynccontextmanager
async def running_standby(
    folder: Path, looks: LooksBetweenBeats | None = None, **changes: Any
) -> AsyncIterator[Standby]:
    home = folder / "standby"
    home.mkdir()
    shared = {"ledger_url": f"sqlite:///{folder / 'journal.sqlite'}", "objects_url": f"file://{folder / 'objects'}"}
    workers = (f"unix:{folder / 'w1'}",)
    changed = {"lease_s": LEASE_S, **changes}
    settings = settings_of(home, worker_addresses=workers, standby=True, **shared, **changed)
    journal = open_journal(settings.ledger_url)
    if looks is not None:
        looks.replace_those_of(journal)
    frontdoor = wire(settings, journal, 0, LIMITS)
    await frontdoor.server.start()
    async with open_channel(settings.rpc.listen[0], settings.channels) as channel:
        standby = Standby(frontdoor, ImageClient(channel))
        try:
            yield standby
        finally:
            standby.active.cancel()
            frontdoor.stop_listening_to_clients()
            await frontdoor.server.stop()
            await frontdoor.close()
            journal.close()


@pytest.mark.slow
async def test_standby_stays_standby_while_active_frontdoor_beats(folder: Path, worker: PacedWorker) -> None:
    """Four checks of the lease without a beat between them would make it active."""
    looks = LooksBetweenBeats()
    async with running_suite(folder, lease_s=LEASE_S) as suite, running_standby(folder, looks) as standby:
        await asyncio.wait_for(until(lambda: looks.count > 6 or standby.active.done()), 120)

        assert not standby.active.done()
        assert (await suite.paint()).image


async def test_standby_reports_its_role(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, lease_s=LEASE_S), running_standby(folder, LooksBetweenBeats()) as standby:
        stream = standby.client.generate(REQUEST)

        for call in (anext(aiter(stream)), standby.client.explain(REQUEST), standby.client.submit(REQUEST)):
            with pytest.raises(Unavailable) as refused:
                await call
            assert (refused.value.reason, refused.value.retry_after_ms) == ("STANDBY", 1000)


@pytest.mark.slow
async def test_standby_finishes_requests_of_killed_frontdoor(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with running_suite(folder, lease_s=LEASE_S) as suite:
        stream = suite.client.generate(REQUEST, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)
    async with running_standby(folder) as standby:
        await standby.active
        worker.hold.set()
        last = await last_completed(standby.client.generate(REQUEST, "key"))

    assert last.request_id == request_id
    assert len(worker.executed) == 1


async def test_slow_takeover_is_not_taken_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a journal with hundreds of thousands of finished requests."""
    go_on = asyncio.Event()

    async def recover_late(_: Retention) -> None:
        await go_on.wait()

    monkeypatch.setattr(Retention, "recover", recover_late)
    async with running_standby(folder, worker_wait_s=0) as standby:
        with closing(open_journal(f"sqlite:///{folder / 'journal.sqlite'}")) as journal:
            await asyncio.wait_for(until(lambda: journal.lease().result().beat > 0), 60)
        assert not standby.active.done()
        go_on.set()
        await standby.active


@asynccontextmanager
async def running_until_superseded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SupersededSuite]:
    """Run a frontdoor as if paused and resumed: its journal may contain a newer epoch."""
    asked_to_stop = asyncio.Event()
    monkeypatch.setattr("services.frontdoor.process.signal.raise_signal", lambda number: asked_to_stop.set())
    async with running_suite(folder, lease_s=LEASE_S) as suite:
        journal = open_journal(f"sqlite:///{folder / 'journal.sqlite'}")
        yield SupersededSuite(suite, journal, asked_to_stop)
        journal.close()


async def test_superseded_frontdoor_cancels_no_request_of_leaving_client(folder: Path, worker: PacedWorker) -> None:
    """A paused frontdoor finds its connections broken before it learns of the newer epoch: its client waits
    elsewhere."""
    worker.hold.clear()
    with closing(open_journal(f"sqlite:///{folder / 'journal.sqlite'}")) as journal:
        async with running_suite(folder, lease_s=3600.0) as suite:
            stream = suite.client.generate(REQUEST, "key")
            request_id = await suite.accepted(stream)
            await worker.wait_until(lambda: worker.running)
            await asyncio.wrap_future(journal.claim_epoch("frontdoor"))

            await stream.aclose()
            await until(lambda: suite.frontdoor.jobs.find(request_id) is None)

        assert [left.request.request_id for left in await asyncio.wrap_future(journal.unfinished())] == [request_id]
    worker.hold.set()


async def test_standby_refuses_cancel_of_request_elsewhere(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with running_suite(folder) as suite, running_standby(folder, lease_s=3600.0) as standby:
        stream = suite.client.generate(REQUEST, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)

        with pytest.raises(Unavailable) as refused:
            await standby.client.cancel(request_id)

        assert refused.value.reason == "REQUEST_ELSEWHERE"
        assert await suite.client.cancel(request_id) is RequestState.CANCELLED


async def test_superseded_frontdoor_accepts_nothing_and_stops(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_until_superseded(folder, monkeypatch) as (suite, journal, asked_to_stop):
        await asyncio.wrap_future(journal.claim_epoch("frontdoor"))

        with pytest.raises(Unavailable):
            await asyncio.wait_for(suite.paint(), 120)
        await asked_to_stop.wait()
        with pytest.raises(Unavailable) as refused:
            await asyncio.wait_for(suite.paint(), 120)
        assert (refused.value.reason, refused.value.retry_after_ms) == ("SUPERSEDED", 1000)
        assert await asyncio.wrap_future(journal.unfinished()) == []
        await asyncio.wait_for(suite.frontdoor.drain(), 120)


async def test_superseded_frontdoor_sends_its_clients_to_the_other(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.hold.clear()
    async with running_until_superseded(folder, monkeypatch) as (suite, journal, asked_to_stop):
        stream = suite.client.generate(REQUEST, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)
        await asyncio.wrap_future(journal.claim_epoch("frontdoor"))

        with pytest.raises(Unavailable) as waiting:
            async with asyncio.timeout(120):
                [event async for event in stream]
        await asked_to_stop.wait()
        with pytest.raises(Unavailable) as cancelling:
            await asyncio.wait_for(suite.client.cancel(request_id), 120)

        assert (waiting.value.reason, cancelling.value.reason) == ("SUPERSEDED", "REQUEST_ELSEWHERE")
        assert [left.request.idempotency_key for left in await asyncio.wrap_future(journal.unfinished())] == ["key"]
    worker.hold.set()
