"""The answering end of a line on an event loop: steps as they come, and how what goes wrong there ends the stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pentimento.domain.errors import PentimentoError
from pentimento.tensors.step_lines import AnsweringLine, LinedLatents

M = TypeVar("M")


class LinedSteps:
    """Judges each step by `begin` (its number and timestep) and gives it to `take`, both on the event loop; what they
    raise ends the stream."""

    def __init__(
        self, line: AnsweringLine, begin: Callable[[int, float], None], take: Callable[[LinedLatents], None]
    ) -> None:
        self._line = line
        self._begin = begin
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(line.fileno(), self._readable)

    def close(self) -> None:
        """Take nothing more from the line, and let go of it. Harmless twice."""
        self._loop.remove_reader(self._line.fileno())
        self._failed.cancel()
        self._line.close()

    def settled(self, future: "Future[Any]") -> None:
        """End the stream with what a step's future failed with; on any thread."""
        if future.cancelled() or self._loop.is_closed():
            return
        error = future.exception()
        if isinstance(error, PentimentoError):
            self._loop.call_soon_threadsafe(self.fail, error)

    def fail(self, error: PentimentoError) -> None:
        """End the stream with an error."""
        if not self._failed.done():
            self._loop.remove_reader(self._line.fileno())
            self._failed.set_exception(error)

    async def until_failed(self, messages: AsyncIterator[M]) -> AsyncGenerator[M, None]:
        """Yield the stream's messages until there are no more. Raises what a step went wrong with, as soon as it
        does."""
        upcoming: asyncio.Task[M | None] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(_next(messages))
                await asyncio.wait((upcoming, self._failed), return_when=asyncio.FIRST_COMPLETED)
                if self._failed.done():
                    self._failed.result()
                message = await upcoming
                if message is None:
                    return
                yield message
        finally:
            if upcoming is not None:
                upcoming.cancel()

    def _readable(self) -> None:
        try:
            for step in self._line.read(self._begin):
                self._take(step)
        except PentimentoError as error:
            self.fail(error)


async def _next(messages: AsyncIterator[M]) -> M | None:
    return await anext(aiter(messages), None)
