"""Errors of a call as the domain's: what the other process raised, or that it could not be reached."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from pentimento.rpc.errors import error_from_rpc


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turn a failed RPC into the `PentimentoError` of the catalogue. Goes around a call, or the reading of its
    stream."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
