"""Who is active among several over one ledger."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import pytest

from pentimento.domain.clock import LeaseState
from pentimento.domain.errors import Unavailable
from pentimento.service.lease import LedgerLease
from pentimento.stores.ledger import Journal

LEASE_S = 0.2


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


class ToldLedger:
    """A ledger that says what it is told to, look by look, and then that the holder is as silent as before."""

    def __init__(self, *looks: LeaseState | None, on_beat: Callable[[int], bool] = lambda epoch: True) -> None:
        self._looks = list(looks)
        self._on_beat = on_beat
        self.look_count = 0

    def lease(self) -> "Future[LeaseState]":
        self.look_count += 1
        found: Future[LeaseState] = Future()
        told = self._looks.pop(0) if self._looks else SILENT
        if told is None:
            found.set_exception(Unavailable("STORE_UNAVAILABLE", "away"))
        else:
            found.set_result(told)
        return found

    def take_over(self, holder_id: str, seen: LeaseState, /) -> "Future[int | None]":
        return done(seen.epoch + 1)

    def beat(self, epoch: int) -> "Future[bool]":
        return done(self._on_beat(epoch))


def done(value: object) -> "Future[object]":
    found: Future[object] = Future()
    found.set_result(value)
    return found


SILENT = LeaseState(5, 1)


async def test_a_holder_is_given_a_whole_lease_and_no_more() -> None:
    ledger = ToldLedger()

    epoch = await LedgerLease(ledger, "standby", 0.01).wait_and_take_over()  # type: ignore[arg-type]

    # The first look, and one at each quarter of the lease.
    assert (epoch, ledger.look_count) == (SILENT.epoch + 1, 5)


@pytest.mark.parametrize(("seen", "silence_s"), [((), None), ((LeaseState(5, 0),), 0.01)])
async def test_silence_is_known_of_watched_holder_alone(seen: tuple[LeaseState, ...], silence_s: float | None) -> None:
    lease = LedgerLease(ToldLedger(*seen), "standby", 0.01)  # type: ignore[arg-type]

    await lease.wait_and_take_over()

    assert lease.silence_s == silence_s


async def test_while_the_ledger_is_away_nobody_is_silent() -> None:
    ledger = ToldLedger(SILENT, SILENT, SILENT, None)

    await LedgerLease(ledger, "standby", 0.01).wait_and_take_over()  # type: ignore[arg-type]

    # Three looks and one that failed; then as if it had begun.
    assert ledger.look_count == 4 + 5


async def test_who_rises_while_it_beats_has_not_lost() -> None:
    epochs, lost, goes_on = [7], list[str](), asyncio.Event()

    def rises(epoch: int) -> bool:
        """Somebody has claimed an epoch above the one that beats; this process leads under a larger one by then."""
        if epoch == 9:
            goes_on.set()
        epochs[0] = 9
        return epoch == 9

    lease = LedgerLease(ToldLedger(on_beat=rises), "active", 0.001)  # type: ignore[arg-type]
    holding = asyncio.create_task(lease.hold(lambda: epochs[0], lambda: lost.append("lost")))
    going_on = asyncio.create_task(goes_on.wait())
    await asyncio.wait([holding, going_on], return_when=asyncio.FIRST_COMPLETED)

    assert (goes_on.is_set(), lost) == (True, [])
    for task in (holding, going_on):
        task.cancel()
    await asyncio.wait([holding, going_on])


async def test_who_was_taken_over_from_hears_of_it_once() -> None:
    lost = list[str]()
    lease = LedgerLease(ToldLedger(on_beat=lambda epoch: False), "active", 0.001)  # type: ignore[arg-type]

    await lease.hold(lambda: 7, lambda: lost.append("lost"))

    assert lost == ["lost"]
