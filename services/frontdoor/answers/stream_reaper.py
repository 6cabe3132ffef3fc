"""End streams without a reader: flow control blocks a message until its client takes it."""

import asyncio
from types import TracebackType
from typing import Self


class StreamReaper:
    """Cancel the task that entered it if a message waits for `idle_s` seconds. A stream has one timer for all messages,
    since most are taken immediately."""

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
        """Note that a message waits for the client from now on."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._idle_s, self._look)

    def end(self) -> None:
        """Note that the client took the message."""
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
