"""Errors of a call as the domain's: what the other process raised, or that it could not be reached."""

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import grpc

from pentimento.rpc.errors import error_from_rpc

Known = TypeVar("Known")


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turn a failed RPC into the `PentimentoError` of the catalogue. Goes around a call, or the reading of its
    stream."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


class WrittenCall:
    """A call whose client writes messages one by one. One that is being written when the other end refuses lets
    `grpc.aio` put INTERNAL in the place of the status that came, a moment later: this keeps the status."""

    def __init__(self, call: "grpc.aio.Call") -> None:
        self._ended: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._keep_status)

    @contextmanager
    def domain_errors(self) -> Iterator[None]:
        """Do as the function of that name does, around whatever waits for this call."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(self._ended or error) from None

    def _keep_status(self, call: "grpc.aio.Call") -> None:
        if self._ended is None:
            code, details, trailing = _known(call.code()), _known(call.details()), _known(call.trailing_metadata())
            self._ended = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


def _known(answer: Coroutine[Any, Any, Known]) -> Known:
    """Return what a coroutine that has nothing to wait for returns."""
    try:
        answer.send(None)
    except StopIteration as returned:
        return cast(Known, returned.value)
    raise RuntimeError("a call that has ended does not know how")
