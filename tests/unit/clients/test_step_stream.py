"""Streams of steps: answers by a line and by messages, and the errors that end them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

from lab.fixtures.step_streams import whole_answer
from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients import step_stream
from pentimento.clients.controlnet import ResidualStream
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError, Unavailable
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.step_lines import AskingLine
from tests.unit.clients.scripted_residuals import ScriptedCall, opened, request, residuals, tensor

GUARD_S = 60.0
LATENTS = tensor((1,))


class Line:
    """Plays a line with the test as its other end."""

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
        for end in self._ends:
            os.close(end)


class Parts:
    """A stream over a call; `line` carries its steps once it is set."""

    def __init__(self, wait: ThreadWait | None = None) -> None:
        self.call, self.line, self.heard = ScriptedCall([opened()]), Line(), asyncio.Event()
        self.stream = ResidualStream(cast(Any, self.call), request(), 1, None, listener=wait)
        self.stream.heard = self.heard.set

    async def open(self, *, lined: bool = True) -> None:
        await self.stream.open()
        if lined:
            self.stream._line = cast(AskingLine, self.line)
            self.stream._listener.listen(self.line.fileno(), self.stream._hear)

    def ask(self, step: int) -> None:
        self.stream.ask(step, 1.0, LATENTS, step)


@pytest.fixture
def wait() -> Iterator[ThreadWait]:
    wait = ThreadWait()
    yield wait
    wait.close()


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    """Open a stream with a line that the event loop reads."""
    made = Parts()
    await made.open()
    yield made
    made.stream.close()


@pytest.fixture
async def lined(wait: ThreadWait) -> AsyncIterator[Parts]:
    """Open a stream with a line that another thread reads."""
    made = Parts(wait)
    await made.open()
    yield made
    made.stream.close()


async def end_of(parts: Parts) -> PentimentoError:
    return await asyncio.wait_for(parts.stream.end(), GUARD_S)


async def test_parts_arrive_by_line_before_whole_answer(parts: Parts) -> None:
    part, whole = ReceivedTensors((), awaited_count=2), ReceivedTensors(())
    parts.ask(3)
    parts.line.answer((3, part))
    await asyncio.wait_for(parts.heard.wait(), GUARD_S)
    assert parts.stream.take(3) is part

    parts.line.answer((3, whole))

    assert await asyncio.wait_for(whole_answer(parts.stream, 3), GUARD_S) is whole
    parts.ask(4)
    assert parts.stream.take(3) is None


async def test_line_with_listener_needs_no_event_loop(lined: Parts, wait: ThreadWait) -> None:
    """The test awaits nothing: the loop does not run."""
    answers = [ReceivedTensors(()), ReceivedTensors(())]
    for step, answer in enumerate(answers):
        lined.ask(step)
        assert lined.stream.take(step) is None
        lined.line.answer((step, answer))
        if step:
            wait.hear_now()
        assert lined.stream.take(step) is answer

    assert lined.line.asked == [0, 1]
    assert not lined.heard.is_set()


@pytest.mark.parametrize("is_lined", [True, False])
async def test_silence_ends_stream(monkeypatch: pytest.MonkeyPatch, is_lined: bool) -> None:
    monkeypatch.setattr(step_stream, "LOOK_S", 0.0)
    monkeypatch.setattr(ResidualStream, "silent_after_s", 0.0)
    parts = Parts()
    await parts.open(lined=is_lined)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not parts.stream._ended.is_set()

    parts.ask(0)

    assert (await end_of(parts)).reason == "CONTROLNET_SILENT"
    parts.stream.close()


async def test_full_line_ends_stream(parts: Parts) -> None:
    parts.line.takes_nothing = True

    parts.ask(0)

    assert (await end_of(parts)).reason == "LINE_GONE"


async def test_end_of_call_ends_lined_stream(lined: Parts) -> None:
    lined.ask(0)
    lined.call.fail(Unavailable("CONTROLNET_GONE", "gone"))

    assert (await end_of(lined)).reason == "CONTROLNET_GONE"


@pytest.mark.parametrize(
    "error",
    [Aborted("STALE_FRAME", "of another stream"), InvalidArgument.of("slot.size_bytes", "must be 8 bytes at 0")],
    ids=["another stream's", "another size"],
)
async def test_wrong_answer_ends_stream_and_line_is_left(
    error: PentimentoError, lined: Parts, wait: ThreadWait
) -> None:
    lined.ask(0)
    lined.line.answer(error)
    wait.hear_now()

    assert isinstance(await end_of(lined), Aborted)
    lined.line.answer((0, ReceivedTensors(())))
    wait.hear_now()
    assert lined.stream.take(0) is None


async def test_messages_carry_steps_in_order_and_free_answers() -> None:
    parts = Parts()
    await parts.open(lined=False)
    for step in range(2):
        parts.stream.ask(step, 1.0, LATENTS, 0)
        parts.call.answer(residuals((2,), step))
    found = [await asyncio.wait_for(whole_answer(parts.stream, step), GUARD_S) for step in range(2)]
    acks = [tensor_pb.SharedMemoryAck(region_id="r", slot=step) for step in range(2)]
    for step, ack in enumerate(acks):
        parts.stream._found[step] = ReceivedTensors(found[step].tensors, ack)

    sent = parts.stream.ask(2, 1.0, LATENTS, 1)
    assert await asyncio.to_thread(sent.wait, GUARD_S)

    steps = [(one.step.step_index if one.HasField("step") else one.ack.slot) for one in parts.call.written[1:]]
    assert steps == [0, 1, 0, 2]
    assert parts.call.written[-2] == pb.StreamResidualsRequest(ack=acks[0])
    assert (parts.stream.take(0), parts.stream.take(1)) == (None, ReceivedTensors(found[1].tensors, acks[1]))
    parts.stream.close()
