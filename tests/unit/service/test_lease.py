"""Who is active among several over one ledger."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pentimento.service.lease import LedgerLease
from pentimento.stores.ledger import Journal, open_journal

LEASE_S = 0.2


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = open_journal(f"sqlite:///{tmp_path / 'journal.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
async def epoch(journal: Journal) -> int:
    """The active frontdoor's."""
    return await asyncio.wrap_future(journal.claim_epoch("active"))


def standby(journal: Journal) -> LedgerLease:
    return LedgerLease(journal, "standby", LEASE_S)


async def test_a_standby_that_was_stopped_takes_that_for_nobodys_silence(journal: Journal, epoch: int) -> None:
    """As a machine that sleeps: nobody beats meanwhile, and the standby may be the first to wake up."""
    waiting = asyncio.create_task(standby(journal).wait_and_take_over())
    await looked(journal)
    time.sleep(2 * LEASE_S)  # noqa: ASYNC251 (everything stands still: that is the point)
    await looked(journal)

    still_active = await asyncio.wrap_future(journal.beat(epoch))

    assert still_active
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


async def looked(journal: Journal) -> None:
    """Until a standby has seen what it asked for."""
    await asyncio.sleep(0)
    await asyncio.wrap_future(journal.lease())  # behind its own look
    await asyncio.sleep(0)


async def test_a_standby_takes_over_from_who_is_silent(journal: Journal, epoch: int) -> None:
    assert await standby(journal).wait_and_take_over() > epoch
