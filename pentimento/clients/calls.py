"""Make calls, and turn their errors into the domain's: the other process's error, or Unavailable."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from pentimento.domain.errors import Aborted, InvalidArgument, Unavailable
from pentimento.rpc.errors import error_from_rpc

Known = TypeVar("Known")
Answer = TypeVar("Answer")


class _Answer(Protocol):
    def WhichOneof(self, oneof_group: Literal["message"], /) -> str | None: ...


Asked = TypeVar("Asked")
Kind = TypeVar("Kind", bound=_Answer)

# grpc.aio's message for a failed write, and the time to wait for the other end's status then.
_WRITE_FAILED = "Internal error from Core"
_LOOK_S = 0.01
_LOOKS = 100


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turn a failed RPC into the `PentimentoError` of the catalogue; wraps a call or the reading of its stream."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


async def answer_of(call: Callable[..., Awaitable[Answer]], request: Message, timeout_s: float | None = None) -> Answer:
    """Return the answer of a unary call; None is the channel's default deadline. Raises domain errors."""
    with domain_errors():
        return await call(request, timeout=timeout_s)


async def uploaded(
    method: Callable[..., Any], first: Message, chunks: Iterable[bytes], timeout_s: float | None = None
) -> Any:
    """Send a message, then the chunks of a file, and return the answer. Raises domain errors."""

    async def messages() -> AsyncIterator[Message]:
        yield first
        for chunk in chunks:
            yield type(first)(chunk=chunk)

    call = method(messages(), timeout=timeout_s)
    async with WrittenCall(call).domain_errors():
        return await call


async def stream(opened: Callable[[], Any], decoded: Callable[[Any], Known]) -> AsyncGenerator[Known, None]:
    """Yield the values of a call's answers. Closing the generator cancels the call. Raises domain errors."""
    call = opened()
    try:
        with domain_errors():
            async for message in call:
                yield decoded(message)
    finally:
        call.cancel()


@contextmanager
def judging_answers() -> Iterator[None]:
    """Turn InvalidArgument into Aborted (STALE_FRAME); wraps the validation of an answer. An invalid answer is a fault
    of the other end, not of the request."""
    try:
        yield
    except InvalidArgument as error:
        raise Aborted("STALE_FRAME", f"what was answered is no answer: {error.message}") from None


class WrittenCall:
    """Raise the real status of a call with messages that the client writes one by one. If the other end
    rejects the call during a write, `grpc.aio` raises INTERNAL a moment before or after the real status."""

    def __init__(self, call: "grpc.aio.Call") -> None:
        self._call = call
        self._ended: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._keep_status)

    @asynccontextmanager
    async def domain_errors(self) -> AsyncIterator[None]:
        """Turn failed RPCs into domain errors like the function of this name, for this call."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(await self._told(error)) from None

    async def _told(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the other end's status, or the error itself if none arrives in time."""
        for _ in range(_LOOKS):
            if self._ended is not None or error.details() != _WRITE_FAILED:
                return self._ended or error
            await asyncio.sleep(_LOOK_S)
            self._keep_status(self._call)
        return error

    def _keep_status(self, call: "grpc.aio.Call") -> None:
        code, details, trailing = _known(call.code()), _known(call.details()), _known(call.trailing_metadata())
        if self._ended is None and details != _WRITE_FAILED:
            self._ended = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


def _known(answer: Coroutine[Any, Any, Known]) -> Known:
    """Return the result of a coroutine that never waits."""
    try:
        answer.send(None)
    except StopIteration as returned:
        return cast(Known, returned.value)
    raise RuntimeError("a call that has ended does not know how")


class AnsweredStream(Generic[Asked, Kind]):
    """Write and read one call. `gone_reason` and `other_end` name the other end in errors."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Asked, Kind]", gone_reason: str, other_end: str) -> None:
        self._call = call
        self._gone_reason = gone_reason
        self._other_end = other_end
        self._written = WrittenCall(call)

    async def send(self, message: Asked) -> None:
        """Write a message. Raises the error with which the other end ended the stream."""
        async with self._written.domain_errors():
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                # The call has ended; its status says why.
                await self._call.read()
                raise self._gone() from None

    async def read(self, wanted: str) -> Kind:
        """Return the next answer. Raises the error with which the other end ended the stream; Aborted (STALE_FRAME) for
        an answer of another kind than `wanted`."""
        async with self._written.domain_errors():
            answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise self._gone()
        message = cast(Kind, answer)
        if message.WhichOneof("message") != wanted:
            raise Aborted("STALE_FRAME", f"{message.WhichOneof('message')} came where {wanted} is due")
        return message

    def cancel(self) -> None:
        """End the stream immediately."""
        self._call.cancel()

    def _gone(self) -> Unavailable:
        return Unavailable(self._gone_reason, f"{self._other_end} ended the stream")
