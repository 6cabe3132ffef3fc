"""A call with a failed write raises the other end's status, in either order."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from pentimento.clients.calls import WrittenCall
from pentimento.domain.errors import InvalidArgument

REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, "is refused")
# The message of `grpc.aio` for a failed write.
FAILED = (grpc.StatusCode.INTERNAL, "Internal error from Core")


class EndingCall:
    """Stand for a call as `grpc.aio` ends it: its status may be replaced, and callbacks get it once."""

    def __init__(self) -> None:
        self._told: list[Callable[[Any], None]] = []
        self._status = FAILED

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._told.append(callback)

    def end(self, status: tuple[grpc.StatusCode, str]) -> None:
        self._status = status
        while self._told:
            self._told.pop()(self)

    def error(self) -> grpc.aio.AioRpcError:
        code, details = self._status
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

    async def code(self) -> grpc.StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()


@pytest.mark.parametrize("first", [REFUSED, FAILED])
async def test_servers_status_wins_in_any_order(first: tuple[grpc.StatusCode, str]) -> None:
    call = EndingCall()
    written = WrittenCall(call)  # type: ignore[arg-type]
    call.end(first)
    call.end(FAILED if first == REFUSED else REFUSED)

    with pytest.raises(InvalidArgument):
        async with written.domain_errors():
            raise call.error()


async def test_status_after_failure_is_awaited() -> None:
    call = EndingCall()
    written = WrittenCall(call)  # type: ignore[arg-type]
    call.end(FAILED)
    error = call.error()
    asyncio.get_running_loop().call_later(0.03, call.end, REFUSED)

    with pytest.raises(InvalidArgument):
        async with written.domain_errors():
            raise error
