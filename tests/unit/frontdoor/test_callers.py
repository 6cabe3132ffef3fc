"""What is counted of open calls is let go of with them: keys of clients would pile up for good."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from pentimento.domain.errors import ResourceExhausted
from services.frontdoor.requests.callers import Callers, HeldKeys


def kept(counted: object) -> list[Any]:
    """What it has in its dictionaries."""
    return [key for held in vars(counted).values() if isinstance(held, dict) for key in held]


def test_a_call_leaves_nothing_behind_however_it_ends() -> None:
    callers = Callers()

    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(callers.calling("acme", "key"))
        with pytest.raises(ResourceExhausted), callers.calling("acme", "key"):
            pass
        raise ZeroDivisionError

    assert kept(callers) == []


async def test_calls_of_one_key_arrive_one_after_the_other_and_leave_nothing_behind() -> None:
    held, order = HeldKeys(), list[str]()

    async def arrive(name: str) -> None:
        async with held.held("acme", "key"):
            order.append(f"{name} comes")
            await asyncio.sleep(0)
            order.append(f"{name} goes")

    await asyncio.gather(arrive("one"), arrive("another"))

    assert order == ["one comes", "one goes", "another comes", "another goes"]
    assert kept(held) == []


async def test_one_that_gives_up_waiting_leaves_nothing_behind() -> None:
    held = HeldKeys()

    async with held.held("acme", "key"):
        waiting = asyncio.create_task(held.held("acme", "key").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    assert kept(held) == []
