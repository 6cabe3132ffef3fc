"""Signals, and work that they interrupt."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from pentimento.rpc.process import StopSignals, completes


async def received() -> None:
    """Let the event loop handle the signals that were sent."""
    for _ in range(3):
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def handled_as_before() -> Iterator[None]:
    """Restore the signal handlers of this process after a test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_asks_second_insists_and_third_is_default(number: signal.Signals) -> None:
    told = []
    with StopSignals(lambda: None) as signals:
        told.append((signals.asked.is_set(), signals.insisted.is_set()))
        for _ in range(2):
            os.kill(os.getpid(), number)
            await received()
            told.append((signals.asked.is_set(), signals.insisted.is_set()))
        third = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    assert told == [(False, False), (True, False), (True, True)]
    assert third == (signal.SIG_DFL, signal.SIG_DFL)


async def test_hangup_stops_nothing_and_is_reported() -> None:
    hangups = []
    with StopSignals(lambda: hangups.append("hangup")) as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        await received()
        asked = signals.asked.is_set()

    assert (hangups, asked) == (["hangup"], False)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


async def test_work_ends_raises_or_is_interrupted() -> None:
    interrupt, cancelled = asyncio.Event(), asyncio.Event()

    async def quick() -> None:
        await asyncio.sleep(0)

    async def broken() -> None:
        raise ValueError("a defect")

    async def endless() -> None:
        interrupt.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    assert await completes(quick, interrupt)
    with pytest.raises(ValueError, match="a defect"):
        await completes(broken, interrupt)
    assert not await completes(endless, interrupt)
    assert cancelled.is_set()
    assert len(asyncio.all_tasks()) == 1
