"""Connections to the frontdoor: each caller's own, bounded, and none that shows another's token."""

from contextlib import AsyncExitStack

import pytest

from pentimento.domain.errors import ResourceExhausted
from services.edge.caller_channels import CALLS_PER_CONNECTION, CallerChannels


class NotedChannel:
    def __init__(self, token: str | None) -> None:
        self.token = token
        self.closed = False

    async def close(self, grace: float | None = None) -> None:
        self.closed = True


class Opened:
    def __init__(self) -> None:
        self.channels: list[NotedChannel] = []

    def __call__(self, token: str | None) -> NotedChannel:
        self.channels.append(NotedChannel(token))
        return self.channels[-1]


def lanes(opened: Opened, callers: int = 2, connections: int = 2) -> CallerChannels:
    return CallerChannels(opened, callers, connections)  # type: ignore[arg-type]


async def test_a_caller_has_a_connection_of_its_own_and_keeps_it() -> None:
    opened = Opened()
    channels = lanes(opened)

    for token in ("a", None, "a", None):
        async with channels.channel(token) as channel:
            assert channel.token == token  # type: ignore[attr-defined]

    assert [channel.token for channel in opened.channels] == ["a", None]


async def test_a_full_connection_gets_another_beside_it_and_then_the_caller_is_refused() -> None:
    opened = Opened()
    channels = lanes(opened)

    async with AsyncExitStack() as calls:
        for _ in range(2 * CALLS_PER_CONNECTION):
            await calls.enter_async_context(channels.channel("a"))
        with pytest.raises(ResourceExhausted) as refused:
            await calls.enter_async_context(channels.channel("a"))
        async with channels.channel("b"):
            assert [channel.token for channel in opened.channels] == ["a", "a", "b"]

    assert (refused.value.reason, refused.value.retry_after_ms) == ("TOO_MANY_CALLS", 1000)
    async with channels.channel("a"):
        assert len(opened.channels) == 3


async def test_who_was_silent_longest_gives_way() -> None:
    opened = Opened()
    channels = lanes(opened)
    for token in ("a", "b", "a", "c"):
        async with channels.channel(token):
            pass

    await channels.close()

    assert [channel.token for channel in opened.channels] == ["a", "b", "c"]
    assert all(channel.closed for channel in opened.channels)


async def test_nobody_who_calls_gives_way() -> None:
    opened = Opened()
    channels = lanes(opened)

    async with channels.channel("a"), channels.channel("b"):
        with pytest.raises(ResourceExhausted) as refused:
            async with channels.channel("c"):
                pass

        assert not any(channel.closed for channel in opened.channels)
    assert refused.value.reason == "TOO_MANY_CALLERS"
