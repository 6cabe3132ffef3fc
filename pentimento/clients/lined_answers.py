"""Answers to steps that went by a line: who waits for them, and until when they are kept."""

import asyncio
from collections.abc import Callable
from typing import Any

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.clients.answered_stream import AnsweredStream
from pentimento.domain.errors import PentimentoError
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.step_lines import AskingLine


class LinedAnswers:
    """One stream's, which ends every wait when it ends. `heard` is called when something has come. On the event loop
    only, but for what says otherwise."""

    def __init__(self, line: AskingLine, stream: AnsweredStream[Any, Any], heard: Callable[[], None]) -> None:
        self._line = line
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._found: dict[int, ReceivedTensors] = {}
        self._waiting: dict[int, asyncio.Future[ReceivedTensors]] = {}
        self._kept_from = 0
        self._error: PentimentoError | None = None
        self._loop.add_reader(line.fileno(), self._hear)
        self._following = asyncio.create_task(self._follow(stream), name="lined-stream")

    def ask(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        """Send a step's latents, and give answers of steps before `keeps_from` up, on any thread, one at a time.
        Raises Unavailable where the line takes nothing."""
        self._kept_from = keeps_from
        given_back: list[pb.SharedMemoryAck] = []
        for step in [step for step in list(self._found) if step < keeps_from or step == step_index]:
            found = self._found.pop(step)
            given_back += [found.ack] if found.ack is not None else []
        self._line.ask(step_index, timestep, latents, given_back)

    def arrived(self, step_index: int) -> ReceivedTensors | None:
        """Return a step's answer where it has come and is not given up, on any thread."""
        return self._found.get(step_index)

    async def of(self, step_index: int) -> ReceivedTensors:
        """Return a step's answer; nothing for one that is given up by now: whoever asked for it took it as it arrived.
        Raises what the stream ends with, Aborted (STALE_FRAME) for an answer to anything else."""
        found = self._found.get(step_index)
        if found is not None or step_index < self._kept_from:
            return found or ReceivedTensors(())
        if self._error is not None:
            raise self._error
        self._waiting[step_index] = self._loop.create_future()
        try:
            return await self._waiting[step_index]
        finally:
            del self._waiting[step_index]

    def close(self) -> None:
        """Let go of the line; who waits is cancelled, as by a call that is."""
        self._loop.remove_reader(self._line.fileno())
        self._line.close()
        self._following.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()

    def _hear(self) -> None:
        try:
            for step_index, found in self._line.read():
                self._found[step_index] = found
                waiting = self._waiting.get(step_index)
                if waiting is not None and not waiting.done():
                    waiting.set_result(found)
        except PentimentoError as error:
            self._loop.remove_reader(self._line.fileno())
            self._fail(error)
        self._heard()

    async def _follow(self, stream: AnsweredStream[Any, Any]) -> None:
        try:
            await stream.read("")  # nothing more is due there
        except PentimentoError as error:
            self._fail(error)

    def _fail(self, error: PentimentoError) -> None:
        self._error = self._error or error
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
