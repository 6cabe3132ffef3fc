"""Prepare the next item while the consumer handles the current one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def one_ahead(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of `source`, which prepares each next item before the consumer is done with this one, and is
    closed at the end. Its errors are raised after the items before."""
    upcoming = asyncio.create_task(anext(source, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(anext(source, None))
            yield item
    finally:
        upcoming.cancel()
        # Errors of the source after the consumer has left are dropped.
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await upcoming
        await source.aclose()
