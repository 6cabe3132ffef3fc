"""Ends streams that nobody reads: flow control holds a message up for as long as its client takes nothing."""

import asyncio
from types import TracebackType
from typing import Self


class StreamReaper:
    """Cancels the task that it was entered in when a message has been handed over for so long. One timer for all
    messages of a stream, each of which is mostly taken at once."""

    __slots__ = ("_idle_s", "_loop", "_since", "_task", "_timer")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self) -> None:
        """A message is handed over from now on."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._idle_s, self._look)

    def end(self) -> None:
        """It was taken."""
        self._since = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        due = self._since + self._idle_s
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        elif self._task is not None:
            self._task.cancel()
