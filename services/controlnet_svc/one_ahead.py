"""To go on with the next item while somebody is busy with this one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def one_ahead(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of `source`, which is asked for the next one before this one is done with, and closed in the end.
    What it raises is raised after the items before."""
    upcoming = asyncio.create_task(anext(source, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(anext(source, None))
            yield item
    finally:
        upcoming.cancel()
        # What the source raises when nobody waits for it any more is nobody's.
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await upcoming
        await source.aclose()
