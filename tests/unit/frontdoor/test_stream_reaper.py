"""Who takes no message for so long is cut off, by one timer a stream."""

import asyncio
from collections.abc import Callable

from services.frontdoor.answers.stream_reaper import StreamReaper

IDLE_S = 10.0


class Clock:
    """A loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.timers.append((when, callback))
        return asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())

    def move_to(self, now: float) -> None:
        self.now = now
        due = [one for one in self.timers if one[0] <= now]
        self.timers = [one for one in self.timers if one[0] > now]
        for _, callback in due:
            callback()


async def reaper_of(clock: Clock, task: "asyncio.Task[None]") -> StreamReaper:
    reaper = StreamReaper(IDLE_S)
    reaper._loop, reaper._task = clock, task  # type: ignore[assignment]
    return reaper


async def test_messages_that_are_taken_share_one_timer_and_cut_nobody_off() -> None:
    clock, task = Clock(), asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    reaper = await reaper_of(clock, task)  # type: ignore[arg-type]
    for now in (100.0, 101.0, 109.0):
        clock.move_to(now)
        reaper.begin()
        reaper.end()

    assert len(clock.timers) == 1
    clock.move_to(110.0)
    assert (clock.timers, task.cancelling()) == ([], 0)
    task.cancel()


async def test_each_message_has_its_own_time() -> None:
    clock, task = Clock(), asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    reaper = await reaper_of(clock, task)  # type: ignore[arg-type]
    reaper.begin()
    reaper.end()
    clock.move_to(104.0)
    reaper.begin()

    clock.move_to(110.0)
    assert ([when for when, _ in clock.timers], task.cancelling()) == ([114.0], 0)
    clock.move_to(114.0)
    assert task.cancelling() == 1


async def test_the_task_that_hands_over_is_cancelled() -> None:
    async def stuck() -> None:
        async with StreamReaper(0.0) as reaper:
            reaper.begin()
            await asyncio.Event().wait()

    async with asyncio.timeout(60):
        (outcome,) = await asyncio.gather(asyncio.create_task(stuck()), return_exceptions=True)

    assert isinstance(outcome, asyncio.CancelledError)


async def test_nothing_is_left_of_a_stream_that_has_ended() -> None:
    async with StreamReaper(1e6) as reaper:
        reaper.begin()
        timer = reaper._timer
        reaper.end()

    assert timer is not None and timer.cancelled()
