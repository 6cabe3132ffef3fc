"""Waits for a condition, with a limit that no busy machine comes near."""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Block until the condition holds. AssertionError after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, while the loop's tasks run. TimeoutError after LIMIT_S."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - threads and other processes change it
            await asyncio.sleep(0.005)


async def settle_down() -> None:
    """Let each task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)
