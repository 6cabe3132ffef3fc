"""Cancel work when its client disconnects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from pentimento.domain.errors import Cancelled

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects, and raise Cancelled CLIENT_LEFT. The request's body must have been
    read."""
    task = asyncio.current_task()
    assert task is not None
    watch = asyncio.ensure_future(disconnected(receive))
    inside, left = True, False

    def on_left(_: object) -> None:
        nonlocal left
        if inside and not watch.cancelled():
            left = True
            task.cancel()

    watch.add_done_callback(on_left)
    try:
        yield
    except asyncio.CancelledError:
        if left and not task.uncancel():
            raise Cancelled("CLIENT_LEFT", "the client disconnected before the answer") from None
        raise
    finally:
        inside = False
        watch.cancel()


async def disconnected(receive: Receive) -> None:
    """Return once the connection is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
