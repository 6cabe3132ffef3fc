"""When the calls of one key begin."""

import asyncio

import pytest

from pentimento.domain.errors import ResourceExhausted
from pentimento.rpc import call_shaping
from pentimento.rpc.call_shaping import BURST_CALLS, CallShaper
from pentimento.testing.clocks import SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock(monotonic_s=100.0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for, without waiting."""
    found: list[float] = []

    async def sleep(delay_s: float) -> None:
        found.append(round(delay_s, 6))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def test_a_burst_begins_at_once_and_the_rest_in_its_order_at_the_rate(
    clock: SetClock, slept: list[float]
) -> None:
    shaper = CallShaper(10.0, clock.monotonic)

    for _ in range(BURST_CALLS + 3):
        await shaper.begin("a")

    assert slept == [0.1, 0.2, 0.3]


async def test_nobody_waits_for_another(clock: SetClock, slept: list[float]) -> None:
    shaper = CallShaper(10.0, clock.monotonic)
    for _ in range(BURST_CALLS + 1):
        await shaper.begin("a")

    for _ in range(BURST_CALLS):
        await shaper.begin("b")

    assert slept == [0.1]


async def test_who_keeps_to_the_rate_never_waits(clock: SetClock, slept: list[float]) -> None:
    shaper = CallShaper(10.0, clock.monotonic)
    for _ in range(3 * BURST_CALLS):
        await shaper.begin("a")
        clock.monotonic_s += 0.1

    assert slept == []


async def test_a_pause_gives_the_burst_back_and_no_more(clock: SetClock, slept: list[float]) -> None:
    shaper = CallShaper(10.0, clock.monotonic)
    for _ in range(BURST_CALLS):
        await shaper.begin("a")
    clock.monotonic_s += 1000.0

    for _ in range(BURST_CALLS + 1):
        await shaper.begin("a")

    assert slept == [0.1]


async def test_only_so_many_wait(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_shaping, "WAITING_CALLS", 2)
    shaper = CallShaper(0.001, clock.monotonic)
    for _ in range(BURST_CALLS):
        await shaper.begin("a")
    waiting = [asyncio.create_task(shaper.begin("a")) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(ResourceExhausted) as refused:
        await shaper.begin("a")

    assert refused.value.reason == "TOO_MANY_CALLS" and refused.value.retry_after_ms
    assert refused.value.message.startswith("2 calls wait already")
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    third = asyncio.create_task(shaper.begin("a"))
    await asyncio.sleep(0)
    assert not third.done(), "the place of the one that left"
    for task in (waiting[1], third):
        task.cancel()


async def test_keys_are_forgotten_once_they_are_past_their_bursts(clock: SetClock) -> None:
    shaper = CallShaper(10.0, clock.monotonic)
    for number in range(5000):
        await shaper.begin(str(number))
        clock.monotonic_s += 1.0

    assert len(shaper._due_at) <= 1025


async def test_so_many_keys_are_kept_and_at_one_more_all_that_are_past_their_bursts_go(clock: SetClock) -> None:
    shaper = CallShaper(10.0, clock.monotonic)
    kept = []
    for number in range(1025):
        await shaper.begin(str(number))
        kept.append(len(shaper._due_at))
        clock.monotonic_s += 1.0

    assert kept == [*range(1, 1025), 0]


async def test_a_storm_is_not_forgotten_where_there_are_many_keys(
    clock: SetClock, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_shaping, "_KEPT_KEYS", 2)
    shaper = CallShaper(10.0, clock.monotonic)
    for _ in range(BURST_CALLS + 1):
        await shaper.begin("storm")
    for key in ("b", "c", "d"):
        await shaper.begin(key)

    await shaper.begin("storm")

    assert slept == [0.1, 0.2]


async def test_the_places_of_all_who_left_are_free_again(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_shaping, "WAITING_CALLS", 1)
    shaper = CallShaper(0.001, clock.monotonic)
    for _ in range(BURST_CALLS):
        await shaper.begin("a")

    for _ in range(3):
        waiting = asyncio.create_task(shaper.begin("a"))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_call_that_comes_just_when_it_may_begins_at_once(clock: SetClock, slept: list[float]) -> None:
    shaper = CallShaper(8.0, clock.monotonic)
    for _ in range(BURST_CALLS):
        await shaper.begin("a")
    clock.monotonic_s += 0.125

    await shaper.begin("a")

    assert slept == []
