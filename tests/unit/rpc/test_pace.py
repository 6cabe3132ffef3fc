"""When the calls of one key begin."""

import asyncio

import pytest

from pentimento.domain.errors import ResourceExhausted
from pentimento.rpc import pace
from pentimento.rpc.pace import BURST_CALLS, Pace


class HandClock:
    """Seconds in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for, without waiting."""
    found: list[float] = []

    async def sleep(delay_s: float) -> None:
        found.append(round(delay_s, 6))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def test_a_burst_begins_at_once_and_the_rest_in_its_order_at_the_pace(
    clock: HandClock, slept: list[float]
) -> None:
    paced = Pace(10.0, clock)

    for _ in range(BURST_CALLS + 3):
        await paced.begin("a")

    assert slept == [0.1, 0.2, 0.3]


async def test_nobody_waits_for_another(clock: HandClock, slept: list[float]) -> None:
    paced = Pace(10.0, clock)
    for _ in range(BURST_CALLS + 1):
        await paced.begin("a")

    for _ in range(BURST_CALLS):
        await paced.begin("b")

    assert slept == [0.1]


async def test_who_keeps_to_the_pace_never_waits(clock: HandClock, slept: list[float]) -> None:
    paced = Pace(10.0, clock)
    for _ in range(3 * BURST_CALLS):
        await paced.begin("a")
        clock.now += 0.1

    assert slept == []


async def test_a_pause_gives_the_burst_back_and_no_more(clock: HandClock, slept: list[float]) -> None:
    paced = Pace(10.0, clock)
    for _ in range(BURST_CALLS):
        await paced.begin("a")
    clock.now += 1000.0

    for _ in range(BURST_CALLS + 1):
        await paced.begin("a")

    assert slept == [0.1]


async def test_only_so_many_wait(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "WAITING_CALLS", 2)
    paced = Pace(0.001, clock)
    for _ in range(BURST_CALLS):
        await paced.begin("a")
    waiting = [asyncio.create_task(paced.begin("a")) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(ResourceExhausted) as refused:
        await paced.begin("a")

    assert refused.value.reason == "TOO_MANY_CALLS" and refused.value.retry_after_ms
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    third = asyncio.create_task(paced.begin("a"))
    await asyncio.sleep(0)
    assert not third.done(), "the place of the one that left"
    for task in (waiting[1], third):
        task.cancel()


async def test_keys_are_forgotten_once_they_are_past_their_bursts(clock: HandClock) -> None:
    paced = Pace(10.0, clock)
    for number in range(5000):
        await paced.begin(str(number))
        clock.now += 1.0

    assert len(paced._due_at) <= 1025
