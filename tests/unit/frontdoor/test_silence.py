"""Silence is counted while somebody listens."""

import asyncio
import time

import pytest

from services.frontdoor.workers.silence import LOOKS, heard_within

SILENCE_S = 0.2


async def test_who_says_nothing_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        async with heard_within(SILENCE_S):
            await asyncio.Event().wait()


async def test_who_says_something_now_and_then_is_not() -> None:
    async with heard_within(SILENCE_S) as silence:
        for _ in range(4 * LOOKS):
            await asyncio.sleep(SILENCE_S / LOOKS)
            silence.heard()


async def test_a_listener_that_was_stopped_itself_hears_first_what_was_said_meanwhile() -> None:
    async with heard_within(SILENCE_S) as silence:
        time.sleep(2 * SILENCE_S)  # noqa: ASYNC251 (everything stands still: that is the point)
        await asyncio.sleep(0)
        silence.heard()
        await asyncio.sleep(0)


async def test_nothing_is_watched_after_the_block() -> None:
    async with heard_within(SILENCE_S) as silence:
        silence.heard()

    await asyncio.sleep(2 * SILENCE_S)
