"""Answers by a line: heard by whoever listens, told to whoever waits, and given up with their stream."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from pentimento.clients import lined_answers
from pentimento.clients.answered_stream import AnsweredStream
from pentimento.clients.lined_answers import LinedAnswers
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError, Unavailable
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.step_lines import AskingLine

GUARD_S = 60.0
LATENTS = cast(OutgoingTensor, None)


class Line:
    """A line whose other end is the test."""

    def __init__(self) -> None:
        self._ends = os.pipe()
        self._answers: list[Any] = []
        self.asked: list[int] = []
        self.takes_nothing = False

    def fileno(self) -> int:
        return self._ends[0]

    def ask(self, step: int, *_: object) -> None:
        if self.takes_nothing:
            raise Unavailable("LINE_GONE", "the line takes nothing more")
        self.asked.append(step)

    def answer(self, answer: Any) -> None:
        self._answers.append(answer)
        os.write(self._ends[1], b"x")

    def read(self) -> list[Any]:
        if self._answers:
            os.read(self._ends[0], 100)
        answers, self._answers = self._answers, []
        for error in answers:
            if isinstance(error, PentimentoError):
                raise error
        return answers

    def close(self) -> None:
        """The test closes it."""

    def destroy(self) -> None:
        for end in self._ends:
            os.close(end)


class Stream:
    """Ends when it is told to."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(self, wanted: str) -> None:
        await self.ended


class Parts:
    def __init__(self, wait: ThreadWait | None = None, silent_after_s: float = GUARD_S) -> None:
        self.line, self.stream, self.heard = Line(), Stream(), asyncio.Event()
        self.answers = LinedAnswers(
            cast(AskingLine, self.line),
            cast(AnsweredStream[Any, Any], self.stream),
            self.heard.set,
            wait,
            silent_after_s,
        )

    def close(self) -> None:
        self.answers.close()
        self.line.destroy()


@pytest.fixture
def wait() -> Iterator[ThreadWait]:
    wait = ThreadWait()
    yield wait
    wait.close()


async def within(waited: Any) -> Any:
    return await asyncio.wait_for(waited, GUARD_S)


async def test_what_the_loop_hears_is_told_to_who_waits() -> None:
    parts, found = Parts(), ReceivedTensors(())
    parts.answers.ask(3, 1.0, LATENTS, 3)
    waiting = asyncio.ensure_future(parts.answers.of(3))
    await asyncio.sleep(0)
    parts.line.answer((3, found))

    assert await within(waiting) is found
    assert parts.heard.is_set()
    parts.close()


async def test_parts_of_an_answer_arrive_and_who_waits_is_told_of_the_whole() -> None:
    parts = Parts()
    part, whole = ReceivedTensors((), awaited_count=2), ReceivedTensors(())
    parts.answers.ask(3, 1.0, LATENTS, 3)
    waiting = asyncio.ensure_future(parts.answers.of(3))
    await asyncio.sleep(0)
    parts.line.answer((3, part))
    await within(parts.heard.wait())

    assert parts.answers.arrived(3) is part
    assert not waiting.done() and not parts.answers.idle

    parts.line.answer((3, whole))
    assert parts.answers.arrived(3) is whole
    assert await within(waiting) is whole
    assert parts.answers.idle
    parts.close()


async def test_what_another_thread_hears_is_told_to_who_waits(wait: ThreadWait) -> None:
    parts, found = Parts(wait), ReceivedTensors(())
    parts.answers.ask(3, 1.0, LATENTS, 3)
    waiting = asyncio.ensure_future(parts.answers.of(3))
    await asyncio.sleep(0)
    parts.line.answer((3, found))
    await asyncio.to_thread(wait.wait, GUARD_S)

    assert await within(waiting) is found
    parts.close()


async def test_who_asks_what_arrived_need_not_wait_for_who_hears(wait: ThreadWait) -> None:
    parts, found = Parts(wait), ReceivedTensors(())
    parts.answers.ask(0, 1.0, LATENTS, 0)
    assert parts.answers.arrived(0) is None
    assert not parts.answers.idle

    parts.line.answer((0, found))

    assert parts.answers.arrived(0) is found
    assert parts.answers.idle
    assert await within(parts.answers.of(0)) is found
    assert not parts.heard.is_set()  # nobody waited on the loop
    parts.answers.ask(1, 1.0, LATENTS, 1)
    assert parts.answers.arrived(0) is None
    parts.close()


async def test_a_step_that_is_not_answered_in_time_ends_the_stream(
    wait: ThreadWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lined_answers, "LOOK_S", 0.0)
    parts = Parts(wait, silent_after_s=0.0)
    parts.answers.ask(0, 1.0, LATENTS, 0)

    with pytest.raises(Unavailable) as caught:
        await within(parts.answers.of(0))

    assert caught.value.reason == "LINE_SILENT"
    assert parts.answers.failed
    assert parts.heard.is_set()
    parts.close()


async def test_nobody_is_silent_who_was_not_asked(wait: ThreadWait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lined_answers, "LOOK_S", 0.0)
    parts = Parts(wait, silent_after_s=0.0)
    parts.line.takes_nothing = True
    with pytest.raises(Unavailable):
        parts.answers.ask(0, 1.0, LATENTS, 0)
    for _ in range(5):
        await asyncio.sleep(0)

    assert not parts.answers.failed
    assert parts.answers.idle
    parts.close()


async def test_a_stream_that_ends_wakes_who_listens_elsewhere(wait: ThreadWait) -> None:
    parts = Parts(wait)
    parts.answers.ask(0, 1.0, LATENTS, 0)
    parts.stream.ended.set_exception(Unavailable("CONTROLNET_GONE", "gone"))

    await within(parts.heard.wait())

    assert parts.answers.failed
    with pytest.raises(Unavailable):
        await within(parts.answers.of(0))
    parts.close()


@pytest.mark.parametrize(
    "error",
    [Aborted("STALE_FRAME", "of another stream"), InvalidArgument.of("slot.size_bytes", "must be 8 bytes at 0")],
    ids=["another stream's", "another size"],
)
async def test_what_is_no_answer_ends_the_stream_and_is_not_heard_again(
    error: PentimentoError, wait: ThreadWait
) -> None:
    parts = Parts(wait)
    parts.answers.ask(0, 1.0, LATENTS, 0)
    parts.line.answer(error)
    await asyncio.to_thread(wait.wait, GUARD_S)

    await within(parts.heard.wait())

    assert parts.answers.failed
    with pytest.raises(Aborted):
        await within(parts.answers.of(0))
    parts.line.answer((0, ReceivedTensors(())))
    wait.hear_now()
    assert parts.answers.arrived(0) is None
    parts.close()
