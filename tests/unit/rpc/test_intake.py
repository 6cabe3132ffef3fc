"""Bound the number, size and duration of request messages received at once."""

import asyncio
from typing import Any

import grpc
import pytest

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.rpc import intake as module
from pentimento.rpc.intake import Intake, Place, ReceivingTurns, checked
from tests.support.waiting import settle_down

MEBIBYTE = 1 << 20


class Stream:
    """A call's context with messages from the test."""

    def __init__(self, *messages: Any) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.reading = False
        for message in messages:
            self.messages.put_nowait(message)

    async def read(self) -> Any:
        self.reading = True
        return await self.messages.get()


def steady_places(intake: Intake, *keys: str) -> list[bool]:
    """Return whether each key gets a place."""
    found = []
    for key in keys:
        try:
            intake.keep_place(key)
            found.append(True)
        except ResourceExhausted:
            found.append(False)
    return found


def test_three_quarters_of_places_are_steady_and_half_per_tenant() -> None:
    for budget_bytes, shared, each, all_ in (
        (40, True, 15, 30),
        (40, False, 30, 30),
        (49, True, 18, 37),
        (1, True, 1, 1),
        (5, True, 2, 4),
        (3, False, 2, 2),
        (3, True, 1, 2),
    ):
        intake = Intake(1, budget_bytes, 1.0, shared=shared)
        one = sum(steady_places(intake, *["a"] * 50))
        others = sum(steady_places(intake, *[f"tenant {number}" for number in range(50)]))
        assert (one, one + others) == (each, all_), (budget_bytes, shared)
    intake = Intake(1, 2, 1.0, shared=True)
    assert steady_places(intake, "a", "b") == [True, False]
    intake.leave_place("a")
    assert steady_places(intake, "b") == [True]


async def test_quarter_of_places_is_quick_and_half_per_tenant() -> None:
    for budget_bytes, shared, quick in (
        (40, False, 10),
        (3, False, 1),
        (11, False, 2),
        (1, False, 1),
        (40, True, 5),
        (20, True, 2),
        (1, True, 1),
    ):
        intake = Intake(1, budget_bytes, 60.0, shared=shared)
        streams = [Stream() for _ in range(20)]
        calls = [
            asyncio.create_task(intake.one(stream, "a", 1, may_settle=False))  # type: ignore[arg-type]
            for stream in streams
        ]
        await settle_down()

        reading = sum(stream.reading for stream in streams)
        for stream in streams:
            stream.messages.put_nowait(b"x")
        assert (reading, await asyncio.gather(*calls)) == (quick, [b"x"] * 20), (budget_bytes, shared)


async def test_larger_message_has_a_second_more_per_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, timeout = list[float](), asyncio.timeout
    monkeypatch.setattr(module.asyncio, "timeout", lambda delay: asked.append(delay) or timeout(delay))
    intake = Intake(1, 2, 5.0, shared=False)

    for limit_bytes, seconds in ((0, 5.0), (MEBIBYTE, 6.0), (8 * MEBIBYTE, 13.0), (MEBIBYTE // 2, 5.5)):
        streamed = intake.many(Stream(b"", grpc.aio.EOF), limit_bytes)  # type: ignore[arg-type]
        assert [message async for message in streamed] == [b""]
        assert asked.pop() == intake.seconds_for(limit_bytes) == seconds


class Limit:
    """A time-out that notes when it is to expire."""

    def __init__(self) -> None:
        self.ends: list[float | None] = []
        self.set = asyncio.Event()

    def when(self) -> float | None:
        return self.ends[-1] if self.ends else None

    def reschedule(self, when: float | None) -> None:
        self.ends.append(when)
        self.set.set()


async def received(turns: ReceivingTurns, until: float, stream: Stream) -> tuple[bytes, list[float | None]]:
    limit = Limit()
    data = await Place(turns, "a", until, may_settle=False).receive(stream, limit)  # type: ignore[arg-type]
    return data, limit.ends


async def test_a_message_that_is_there_at_once_is_given_no_end() -> None:
    until = asyncio.get_running_loop().time() + 1e6

    assert await received(ReceivingTurns(1, 1, 1, 1), until, Stream(b"x")) == (b"x", [])


async def test_message_with_little_time_or_no_place_gets_end_at_once() -> None:
    now, turns = asyncio.get_running_loop().time(), ReceivingTurns(1, 1, 1, 1)
    assert await received(turns, now, Stream(b"x")) == (b"x", [now])
    await turns.enter("b")

    waiting = asyncio.create_task(received(turns, now + 1e6, Stream(b"x")))
    await settle_down()
    turns.leave("b")

    assert await waiting == (b"x", [now + 1e6])


async def test_a_message_that_is_not_there_soon_is_given_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    until, limit, stream = asyncio.get_running_loop().time() + 1e6, Limit(), Stream()
    turns = ReceivingTurns(1, 1, 1, 1)

    call = asyncio.create_task(Place(turns, "a", until, may_settle=True).receive(stream, limit))  # type: ignore[arg-type]
    await limit.set.wait()
    stream.messages.put_nowait(b"x")

    assert await call == b"x"
    assert limit.ends == [until]


async def refusal(intake: Intake, stream: Stream, *, may_settle: bool = True) -> PentimentoError:
    with pytest.raises(PentimentoError) as refused:
        await intake.one(stream, "a", 3, may_settle=may_settle)  # type: ignore[arg-type]
    return refused.value


async def test_missing_or_late_message_is_rejected_by_reason() -> None:
    assert (await refusal(Intake(1, 2, 0.01, shared=False), Stream())).reason == "REQUEST_NOT_RECEIVED"
    assert (await refusal(Intake(1, 2, 1.0, shared=False), Stream(grpc.aio.EOF))).reason == "NO_MESSAGE"
    assert (await refusal(Intake(1, 2, 1.0, shared=False), Stream(b"four"))).reason == "MESSAGE_TOO_LARGE"


async def test_message_without_turn_is_rejected_as_too_many() -> None:
    intake = Intake(1, 2, 0.05, shared=False)
    holder = Stream()
    first = asyncio.create_task(intake.one(holder, "a", 60 * MEBIBYTE, may_settle=False))  # type: ignore[arg-type]
    await settle_down()

    assert (await refusal(intake, Stream())).reason == "TOO_MANY_MESSAGES"
    holder.messages.put_nowait(b"x")
    assert await first == b"x"
    assert await intake.one(Stream(b"x"), "a", 3, may_settle=True) == b"x"  # type: ignore[arg-type]


async def test_a_slow_message_moves_to_a_steady_place_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    intake = Intake(1, 2, 60.0, shared=False)
    slow = Stream()
    call = asyncio.create_task(intake.one(slow, "a", 3, may_settle=True))  # type: ignore[arg-type]
    while steady_places(intake, "b") == [True]:
        intake.leave_place("b")
        await asyncio.sleep(0)

    meanwhile = await intake.one(Stream(b"y"), "b", 3, may_settle=False)  # type: ignore[arg-type]
    slow.messages.put_nowait(b"x")

    assert (meanwhile, await call) == (b"y", b"x")
    assert steady_places(intake, "b", "b") == [True, False]


async def test_slow_message_without_steady_place_is_rejected_when_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    intake = Intake(1, 2, 60.0, shared=False)
    slow = asyncio.create_task(refusal(intake, Stream(), may_settle=False))
    for _ in range(20):
        await asyncio.sleep(0)
    alone = slow.done()

    answer = await intake.one(Stream(b"y"), "b", 3, may_settle=False)  # type: ignore[arg-type]

    assert (alone, answer, (await slow).reason) == (False, b"y", "TOO_MANY_MESSAGES")


async def test_every_message_of_a_stream_is_held_to_the_limit() -> None:
    received = []
    with pytest.raises(errors.ResourceExhausted):
        async for message in Intake(1, 2, 1.0, shared=False).many(Stream(b"one", b"two", b"four"), 3):  # type: ignore[arg-type]
            received.append(message)

    assert received == [b"one", b"two"]


async def test_a_stream_s_first_message_must_come_in_time() -> None:
    with pytest.raises(errors.DeadlineExceeded):
        async for _ in Intake(1, 2, 0.01, shared=False).many(Stream(), 0):  # type: ignore[arg-type]
            pass


def test_a_message_of_just_the_limit_is_taken() -> None:
    assert checked(b"abc", 3) == b"abc"
    with pytest.raises(ResourceExhausted) as refused:
        checked(b"abcd", 3)
    assert refused.value.metadata == {"size_bytes": "4", "limit_bytes": "3"}


async def test_a_message_that_is_there_takes_no_steady_place_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    intake = Intake(1, 2, 60.0, shared=False)

    message = await intake.one(Stream(b"x"), "a", 3, may_settle=True)  # type: ignore[arg-type]
    await settle_down()

    assert (message, steady_places(intake, "b")) == (b"x", [True])
