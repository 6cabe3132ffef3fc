"""Clients that connect and send nothing."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def silent_connections(address: tuple[str, int], count: int) -> Iterator[None]:
    """Keep `count` connections open inside the block."""
    with ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(address))
        yield
