"""A stream of requests and answers, each of one kind of its message's `oneof`."""

import asyncio
from typing import Generic, Literal, Protocol, TypeVar, cast

import grpc.aio

from pentimento.clients.errors import WrittenCall
from pentimento.domain.errors import Aborted, Unavailable


class _Answer(Protocol):
    def WhichOneof(self, oneof_group: Literal["message"], /) -> str | None: ...


Request = TypeVar("Request")
Answer = TypeVar("Answer", bound=_Answer)


class AnsweredStream(Generic[Request, Answer]):
    """Writes and reads one call. `gone_reason` and `other_end` say of whom it is told that the stream ended."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Request, Answer]", gone_reason: str, other_end: str) -> None:
        self._call = call
        self._gone_reason = gone_reason
        self._other_end = other_end
        self._written = WrittenCall(call)

    async def send(self, message: Request) -> None:
        """Write a message. Raises what the other end ended the stream with."""
        async with self._written.domain_errors():
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                # The call has ended; its status says why.
                await self._call.read()
                raise self._gone() from None

    async def read(self, wanted: str) -> Answer:
        """Return the next answer. Raises what the other end ended the stream with, and Aborted (STALE_FRAME) where the
        answer is of another kind than `wanted`."""
        async with self._written.domain_errors():
            answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise self._gone()
        message = cast(Answer, answer)
        if message.WhichOneof("message") != wanted:
            raise Aborted("STALE_FRAME", f"{message.WhichOneof('message')} came where {wanted} is due")
        return message

    def cancel(self) -> None:
        """End the stream at once."""
        self._call.cancel()

    def _gone(self) -> Unavailable:
        return Unavailable(self._gone_reason, f"{self._other_end} ended the stream")
