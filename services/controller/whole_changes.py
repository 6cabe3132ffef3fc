"""Changes of the ledger and of what is held in memory after it, which belong together."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def wholly(change: Coroutine[Any, Any, T]) -> T:
    """Return what the change returns. A caller who is cancelled meanwhile, once, ends after it: the ledger would have
    what memory has not. Cancelled again, nobody waits for it."""
    changing = asyncio.ensure_future(change)
    try:
        return await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.wait({changing})
        raise
