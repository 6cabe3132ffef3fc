"""Test the directory of tenants: it follows the ledger, and stays in memory while the ledger is away."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.dataplane.events import Event, QuotasReceived
from pentimento.domain.tenants import HashedKey, TenantBook, TenantKey, TenantQuota
from pentimento.rpc.tokens import KeyRing, blinded
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.requests import Journal
from pentimento.stores.ledger.tenant_ledger import TenantLedger
from services.frontdoor.tenants import directory as module
from services.frontdoor.tenants.directory import TenantDirectory

TWO = TenantQuota(weight=2.0)
KEY = HashedKey(TenantKey("k", "acme", 0.0), "d" * 64)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", SetClock())
    yield opened
    opened.close()


class Away(TenantLedger):
    """A ledger that answers only the third of five reads."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal._writer, SetClock())
        self.looked = asyncio.Event()
        self.look_count = 0

    def revision(self) -> "Future[int]":
        self.look_count += 1
        if self.look_count == 6:
            self.looked.set()
        if self.look_count == 3:
            return super().revision()
        failed: Future[int] = Future()
        failed.set_exception(StoreUnavailable("ledger", "away"))
        return failed


async def test_change_of_other_process_is_followed(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    told: list[Event] = []
    changed, keys = asyncio.Event(), KeyRing(lambda: 1.0)

    def tell(event: Event) -> None:
        told.append(event)
        changed.set()

    await asyncio.wrap_future(journal.tenants.create("acme", TWO))
    await asyncio.wrap_future(journal.tenants.add_key(KEY))
    following = asyncio.create_task(TenantDirectory(journal.tenants, keys, tell).follow_forever())
    async with asyncio.timeout(60.0):
        await changed.wait()
    following.cancel()

    assert told == [QuotasReceived((("acme", TWO),))]
    found = keys.find(blinded("d" * 64))
    assert found is not None and found.tenant == "acme"


class Counted(TenantLedger):
    """Record the reads of a ledger."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal._writer, SetClock())
        self.reads: list[str] = []
        self.looked = asyncio.Event()

    def revision(self) -> "Future[int]":
        self.reads.append("revision")
        if self.reads.count("revision") == 3:
            self.looked.set()
        return super().revision()

    def book(self) -> "Future[TenantBook]":
        self.reads.append("book")
        return super().book()


async def test_a_book_of_the_same_revision_is_not_read_again(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    ledger = Counted(journal)

    following = asyncio.create_task(TenantDirectory(ledger, KeyRing(), lambda event: None).follow_forever())
    async with asyncio.timeout(60.0):
        await ledger.looked.wait()
    following.cancel()

    assert ledger.reads == ["revision", "book", "revision", "revision"]


async def test_absent_ledger_is_logged_once_per_absence_and_keeps_quotas(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    await asyncio.wrap_future(journal.tenants.create("acme", TWO))
    away = Away(journal)
    directory = TenantDirectory(away, KeyRing(), lambda event: None)
    await directory.refresh()

    following = asyncio.create_task(directory.follow_forever())
    async with asyncio.timeout(60.0):
        await away.looked.wait()
    following.cancel()

    assert (directory.quota_of("acme"), directory.quota_of("other")) == (TWO, TenantQuota())
    warned = [record for record in caplog.records if record.name == module.__name__]
    assert [record.message for record in warned] == ["tenants cannot be read; the known ones stay"] * 2


def test_change_is_read_within_a_second() -> None:
    assert module.LOOK_S == 1.0


async def test_between_two_looks_passes_the_time_that_it_says(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(module.asyncio, "sleep", sleep)

    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60.0):
            await TenantDirectory(journal.tenants, KeyRing(), lambda event: None).follow_forever()

    assert slept == [1.0] * 3
