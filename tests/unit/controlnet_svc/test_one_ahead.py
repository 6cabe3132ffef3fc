"""The next item is on its way while somebody is busy with this one, and nothing is lost or left running."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from services.controlnet_svc.one_ahead import one_ahead


class Source:
    """Counts to three, then fails where it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.begun = 0
        self.closed = False
        self._fails = fails

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                self.begun = number + 1
                await asyncio.sleep(0)
                yield number
            if self._fails:
                raise ValueError("broken")
        finally:
            self.closed = True


async def test_all_items_come_in_order_and_the_next_is_begun_before_this_one_is_done_with() -> None:
    source = Source()
    begun = []
    async with aclosing(one_ahead(source.items())) as items:
        async for number in items:
            await asyncio.sleep(0.01)
            begun.append((number, source.begun))

    assert begun == [(0, 2), (1, 3), (2, 3)]
    assert source.closed


async def test_what_the_source_raises_comes_after_the_items_before_it() -> None:
    source = Source(fails=True)
    seen = []
    with pytest.raises(ValueError, match="broken"):
        async for number in one_ahead(source.items()):
            seen.append(number)

    assert seen == [0, 1, 2]
    assert source.closed


async def test_a_source_that_nobody_reads_any_more_is_closed() -> None:
    source = Source(fails=True)
    async with aclosing(one_ahead(source.items())) as items:
        async for _ in items:
            break

    assert source.closed
    assert len(asyncio.all_tasks()) == 1
