"""Elect one active process of several over one ledger."""

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
    """Return the epoch of the active frontdoor."""
    return await asyncio.wrap_future(journal.claim_epoch("active"))


def standby(journal: Journal) -> LedgerLease:
    return LedgerLease(journal, "standby", LEASE_S)


async def test_stopped_standby_does_not_count_its_pause_as_silence(journal: Journal, epoch: int) -> None:
    """As on a machine that sleeps: the holder does not beat meanwhile, and the standby may wake up first."""
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
    """Wait until a standby has read the lease."""
    await asyncio.sleep(0)
    await asyncio.wrap_future(journal.lease())  # behind its own look
    await asyncio.sleep(0)


async def test_standby_takes_over_from_silent_holder(journal: Journal, epoch: int) -> None:
    assert await standby(journal).wait_and_take_over() > epoch


class ScriptedLedger:
    """A ledger that answers from a script, and then as if the holder were silent."""

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
    ledger = ScriptedLedger()

    epoch = await LedgerLease(ledger, "standby", 0.01).wait_and_take_over()  # type: ignore[arg-type]

    # The first look, and one at each quarter of the lease.
    assert (epoch, ledger.look_count) == (SILENT.epoch + 1, 5)


@pytest.mark.parametrize(("seen", "silence_s"), [((), None), ((LeaseState(5, 0),), 0.01)])
async def test_silence_is_known_of_watched_holder_alone(seen: tuple[LeaseState, ...], silence_s: float | None) -> None:
    lease = LedgerLease(ScriptedLedger(*seen), "standby", 0.01)  # type: ignore[arg-type]

    await lease.wait_and_take_over()

    assert lease.silence_s == silence_s


async def test_absent_ledger_is_no_silence_of_holder() -> None:
    ledger = ScriptedLedger(SILENT, SILENT, SILENT, None)

    await LedgerLease(ledger, "standby", 0.01).wait_and_take_over()  # type: ignore[arg-type]

    # Three looks and one that failed; then as if it had begun.
    assert ledger.look_count == 4 + 5


async def test_holder_with_higher_epoch_has_not_lost() -> None:
    epochs, lost, goes_on = [7], list[str](), asyncio.Event()

    def rises(epoch: int) -> bool:
        """Return False for the first epoch: another process claimed a higher one, and this process then leads with a
        larger one."""
        if epoch == 9:
            goes_on.set()
        epochs[0] = 9
        return epoch == 9

    lease = LedgerLease(ScriptedLedger(on_beat=rises), "active", 0.001)  # type: ignore[arg-type]
    holding = asyncio.create_task(lease.hold(lambda: epochs[0], lambda: lost.append("lost")))
    going_on = asyncio.create_task(goes_on.wait())
    await asyncio.wait([holding, going_on], return_when=asyncio.FIRST_COMPLETED)

    assert (goes_on.is_set(), lost) == (True, [])
    for task in (holding, going_on):
        task.cancel()
    await asyncio.wait([holding, going_on])


async def test_replaced_holder_is_notified_once() -> None:
    lost = list[str]()
    lease = LedgerLease(ScriptedLedger(on_beat=lambda epoch: False), "active", 0.001)  # type: ignore[arg-type]

    await lease.hold(lambda: 7, lambda: lost.append("lost"))

    assert lost == ["lost"]
