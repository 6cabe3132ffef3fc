"""Receive answers to steps that were sent by a line: wake the waiting callers, and limit the lifetime of answers."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.clients.answered_stream import AnsweredStream
from pentimento.clients.errors import judging_answers
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.tensors.lines import LineListener, LoopListener
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.step_lines import AskingLine

# Interval of the check for overdue answers.
LOOK_S = 1.0


class LinedAnswers:
    """Hold the answers of one stream; on the event loop only, except where a method says otherwise.

    The end of the stream ends every wait; a step without an answer for `silent_after_s` ends the stream. `listener`
    reads the answers, by default the event loop; `heard` is called when `arrived` or `failed` may have changed."""

    def __init__(
        self,
        line: AskingLine,
        stream: AnsweredStream[Any, Any],
        heard: Callable[[], None],
        listener: LineListener | None = None,
        silent_after_s: float = 60.0,
    ) -> None:
        self._line = line
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._found: dict[int, ReceivedTensors] = {}
        self._waiting: dict[int, asyncio.Future[ReceivedTensors]] = {}
        self._asked_at: dict[int, float] = {}
        self._silent_after_s = silent_after_s
        self._kept_from = 0
        self._error: PentimentoError | None = None
        self._closed = False
        # One thread reads at a time, none while the line is being closed.
        self._reading = threading.Lock()
        self._hears_on_loop = listener is None
        self._listener = listener or LoopListener()
        self._listener.listen(line.fileno(), self._hear)
        self._following = asyncio.create_task(self._follow(stream), name="lined-stream")
        self._look = self._loop.call_later(LOOK_S, self._look_for_silence)

    @property
    def failed(self) -> bool:
        """Return whether no further answers will arrive; on any thread."""
        return self._error is not None or self._closed

    @property
    def idle(self) -> bool:
        """Return whether all steps are answered; on any thread."""
        return not self._asked_at

    def ask(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        """Send a step's latents, and drop answers of steps before `keeps_from`; on any thread, one at a time. Raises
        Unavailable if the line accepts nothing."""
        self._kept_from = keeps_from
        given_back: list[pb.SharedMemoryAck] = []
        for step in [step for step in list(self._found) if step < keeps_from or step == step_index]:
            found = self._found.pop(step)
            given_back += [found.ack] if found.ack is not None else []
        self._asked_at[step_index] = time.monotonic()
        try:
            self._line.ask(step_index, timestep, latents, given_back)
        except PentimentoError:
            del self._asked_at[step_index]
            raise

    def arrived(self, step_index: int) -> ReceivedTensors | None:
        """Return the received part of a step's answer, unless dropped; on any thread."""
        if step_index in self._asked_at:
            self._hear()
        return self._found.get(step_index)

    async def of(self, step_index: int) -> ReceivedTensors:
        """Return a step's whole answer; empty for a dropped one, which its caller has read in parts. Raises the
        stream's error; Aborted (STALE_FRAME) for an answer to another step."""
        waiting: asyncio.Future[ReceivedTensors] = self._loop.create_future()
        # Set before reading: answers that another thread reads from here on wake the waiting callers.
        self._waiting[step_index] = waiting
        try:
            found = self._whole(step_index)
            if found is not None or step_index < self._kept_from:
                return found or ReceivedTensors(())
            if self._error is not None:
                raise self._error
            return await waiting
        finally:
            del self._waiting[step_index]

    def close(self) -> None:
        """Close the line and cancel the waiting callers, like the end of a call does."""
        self._listener.forget(self._line.fileno())
        with self._reading:
            self._closed = True
            self._line.close()
        self._look.cancel()
        self._following.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()

    def _hear(self) -> None:
        """Read answers; on the listener's thread and on the threads of callers of `arrived`."""
        with self._reading:
            if self.failed:
                return
            try:
                with judging_answers():
                    self._read()
            except PentimentoError as error:
                self._listener.forget(self._line.fileno())
                self._error = error
        # A listener with its own thread calls `arrived` on it.
        if self._hears_on_loop or self._waiting or self._error is not None:
            self._loop.call_soon_threadsafe(self._tell)

    def _read(self) -> None:
        for step_index, found in self._line.read():
            self._found[step_index] = found
            if found.awaited_count:
                self._asked_at[step_index] = time.monotonic()
            else:
                self._asked_at.pop(step_index, None)

    def _whole(self, step_index: int) -> ReceivedTensors | None:
        found = self._found.get(step_index)
        return None if found is None or found.awaited_count else found

    def _tell(self) -> None:
        for step_index, waiting in self._waiting.items():
            found = self._whole(step_index)
            if waiting.done():
                continue
            if found is not None:
                waiting.set_result(found)
            elif self._error is not None:
                waiting.set_exception(self._error)
        self._heard()

    async def _follow(self, stream: AnsweredStream[Any, Any]) -> None:
        try:
            await stream.read("")  # no further answer is due there
        except PentimentoError as error:
            self._fail(error)

    def _look_for_silence(self) -> None:
        self._look = self._loop.call_later(LOOK_S, self._look_for_silence)
        oldest = min(list(self._asked_at.values()), default=None)
        if oldest is not None and time.monotonic() - oldest >= self._silent_after_s:
            self._fail(Unavailable("LINE_SILENT", "a step was not answered in time"))

    def _fail(self, error: PentimentoError) -> None:
        self._error = self._error or error
        self._tell()
