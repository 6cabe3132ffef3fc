"""Serve the answering end of a line: take steps as they arrive, and end the stream if a step fails."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, TypeVar

from pentimento.domain.errors import PentimentoError
from pentimento.tensors.lines import LineListener
from pentimento.tensors.step_lines import AnsweringLine, LinedLatents

M = TypeVar("M")


class LinedSteps:
    """Validate each step with `begin` (its number and timestep) and pass it to `take`, both on the thread of
    `listener`; their errors end the stream. Only on the event loop, unless stated otherwise."""

    def __init__(
        self,
        line: AnsweringLine,
        begin: Callable[[int, float], None],
        take: Callable[[LinedLatents], None],
        listener: LineListener,
    ) -> None:
        self._line = line
        self._begin = begin
        self._take = take
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        # No step is taken after `close`.
        self._taking = threading.Lock()
        listener.listen(line.fileno(), self._readable)

    def close(self) -> None:
        """Stop taking steps and close the line. Idempotent."""
        self._listener.forget(self._line.fileno())
        with self._taking:
            self._closed = True
            self._line.close()
        self._failed.cancel()

    def settled(self, future: "Future[Any]") -> None:
        """End the stream with the error of a step's future, if it has one; on any thread."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, PentimentoError):
            self.fail(error)

    def fail(self, error: PentimentoError) -> None:
        """End the stream with an error; on any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: PentimentoError) -> None:
        if not self._failed.done():
            self._listener.forget(self._line.fileno())
            self._failed.set_exception(error)

    async def until_failed(self, messages: AsyncIterator[M]) -> AsyncGenerator[M, None]:
        """Yield the stream's messages until it ends. Raises the error of a failed step as soon as it fails."""
        async with aclosing(messages_until(messages, self._failed)) as followed:
            async for message in followed:
                yield message

    def _readable(self) -> None:
        with self._taking:
            if self._closed:
                return
            try:
                for step in self._line.read(self._begin):
                    self._take(step)
            except PentimentoError as error:
                self.fail(error)


async def messages_until(messages: AsyncIterator[M], failed: "asyncio.Future[None]") -> AsyncGenerator[M, None]:
    """Yield a stream's messages until it ends. Raises the exception of `failed` once set, without waiting for the next
    message."""
    upcoming: asyncio.Task[M | None] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(_next(messages))
            await asyncio.wait((upcoming, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            message = await upcoming
            if message is None:
                return
            yield message
    finally:
        if upcoming is not None:
            upcoming.cancel()


async def _next(messages: AsyncIterator[M]) -> M | None:
    return await anext(aiter(messages), None)
