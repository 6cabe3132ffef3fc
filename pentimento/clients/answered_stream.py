"""Exchange requests and answers on one stream, with the kinds of the messages' `oneof`."""

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
    """Write and read one call. `gone_reason` and `other_end` name the other end in errors."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Request, Answer]", gone_reason: str, other_end: str) -> None:
        self._call = call
        self._gone_reason = gone_reason
        self._other_end = other_end
        self._written = WrittenCall(call)

    async def send(self, message: Request) -> None:
        """Write a message. Raises the error with which the other end ended the stream."""
        async with self._written.domain_errors():
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                # The call has ended; its status says why.
                await self._call.read()
                raise self._gone() from None

    async def read(self, wanted: str) -> Answer:
        """Return the next answer. Raises the error with which the other end ended the stream; Aborted (STALE_FRAME) for
        an answer of another kind than `wanted`."""
        async with self._written.domain_errors():
            answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise self._gone()
        message = cast(Answer, answer)
        if message.WhichOneof("message") != wanted:
            raise Aborted("STALE_FRAME", f"{message.WhichOneof('message')} came where {wanted} is due")
        return message

    def cancel(self) -> None:
        """End the stream immediately."""
        self._call.cancel()

    def _gone(self) -> Unavailable:
        return Unavailable(self._gone_reason, f"{self._other_end} ended the stream")
