"""Errors of a call as the domain's: what the other process raised, or that it could not be reached."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import grpc

from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.rpc.errors import error_from_rpc

Known = TypeVar("Known")

# What grpc.aio says of a write that failed; for how long the other end's status is waited for then.
_WRITE_FAILED = "Internal error from Core"
_LOOK_S = 0.01
_LOOKS = 100


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turn a failed RPC into the `PentimentoError` of the catalogue. Goes around a call, or the reading of its
    stream."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


@contextmanager
def judging_answers() -> Iterator[None]:
    """Goes around what judges an answer: nonsense is the other end's (Aborted, STALE_FRAME), and tells nothing of the
    request, which the other end itself refuses by InvalidArgument."""
    try:
        yield
    except InvalidArgument as error:
        raise Aborted("STALE_FRAME", f"what was answered is no answer: {error.message}") from None


class WrittenCall:
    """A call whose client writes messages one by one. Where one is being written while the other end refuses,
    `grpc.aio` says INTERNAL in the place of the status that comes, a moment before or after it: this tells that one."""

    def __init__(self, call: "grpc.aio.Call") -> None:
        self._call = call
        self._ended: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._keep_status)

    @asynccontextmanager
    async def domain_errors(self) -> AsyncIterator[None]:
        """Do as the function of that name does, around whatever waits for this call."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(await self._told(error)) from None

    async def _told(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the other end's status, or the error itself where none comes in time."""
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
    """Return what a coroutine that has nothing to wait for returns."""
    try:
        answer.send(None)
    except StopIteration as returned:
        return cast(Known, returned.value)
    raise RuntimeError("a call that has ended does not know how")
