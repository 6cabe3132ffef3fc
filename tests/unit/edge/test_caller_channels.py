"""Connections to the frontdoor: each caller's own, bounded, and none that shows another's token."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pentimento.domain.errors import PermissionDenied, ResourceExhausted, Unauthenticated
from services.edge.caller_channels import CALLS_PER_CONNECTION, CallerChannels, Introduction


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


async def accept(token: str | None, channel: object) -> None:
    """Know every token."""


@pytest.fixture(autouse=True)
def two_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_CALLERS", "CONNECTIONS_PER_CALLER"):
        monkeypatch.setattr(f"services.edge.caller_channels.{name}", 2)


def lanes(opened: Opened, introduce: Introduction = accept) -> CallerChannels:
    return CallerChannels(opened, introduce)  # type: ignore[arg-type]


async def test_each_caller_keeps_one_connection() -> None:
    opened = Opened()
    channels = lanes(opened)

    for token in ("a", None, "a", None):
        async with channels.channel(token) as channel:
            assert channel.token == token  # type: ignore[attr-defined]

    assert [channel.token for channel in opened.channels] == ["a", None]


async def test_caller_is_rejected_after_two_full_connections() -> None:
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


async def test_least_recent_caller_gives_way() -> None:
    opened = Opened()
    channels = lanes(opened)
    for token in ("a", "b", "a", "c"):
        async with channels.channel(token):
            pass

    await channels.close()

    assert [channel.token for channel in opened.channels] == ["a", "b", "c"]
    assert all(channel.closed for channel in opened.channels)


async def test_calling_caller_keeps_its_connection() -> None:
    opened = Opened()
    channels = lanes(opened)

    async with channels.channel("a"), channels.channel("b"):
        with pytest.raises(ResourceExhausted) as refused:
            async with channels.channel("c"):
                pass

        assert not any(channel.closed for channel in opened.channels[:2])
    assert refused.value.reason == "TOO_MANY_CALLERS"


class Introducer:
    """Accepts tokens that begin with "good", and rejects others once `rejects` is set."""

    def __init__(self) -> None:
        self.rejects = asyncio.Event()
        self.asked: list[str | None] = []

    async def __call__(self, token: str | None, channel: object) -> None:
        self.asked.append(token)
        if not str(token).startswith("good"):
            await self.rejects.wait()
            raise Unauthenticated("UNKNOWN_TOKEN", "the token is not known")
        if token == "good for less":
            raise PermissionDenied("ROLE_NOT_ALLOWED", "the role may not")


async def call(channels: CallerChannels, token: str | None) -> None:
    async with channels.channel(token):
        pass


async def begun(channels: CallerChannels, *tokens: str) -> list[asyncio.Task[None]]:
    """Start calls with these tokens, and let each run up to its first wait."""
    calls = []
    for token in tokens:
        calls.append(asyncio.ensure_future(call(channels, token)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return calls


async def test_strangers_hold_no_place_of_a_caller() -> None:
    judge = Introducer()
    channels = lanes(Opened(), introduce=judge)
    strangers = await begun(channels, "x", "y", "z")

    async with channels.channel("good"), channels.channel("good for less"):
        judge.rejects.set()
        refusals = await asyncio.gather(*strangers, return_exceptions=True)

    assert [type(refusal) for refusal in refusals] == [Unauthenticated] * 3


async def test_the_oldest_stranger_makes_room_and_its_connection_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.edge.caller_channels.MAX_STRANGERS", 2)
    judge, opened = Introducer(), Opened()
    channels = lanes(opened, introduce=judge)
    strangers = await begun(channels, "x", "y", "z")

    with pytest.raises(ResourceExhausted) as refused:
        await strangers[0]
    judge.rejects.set()
    await asyncio.gather(*strangers, return_exceptions=True)
    await channels.close()

    assert (refused.value.reason, refused.value.retry_after_ms) == ("TOO_MANY_CALLERS", 1000)
    assert all(channel.closed for channel in opened.channels)


async def test_calls_with_one_token_wait_for_one_introduction() -> None:
    judge = Introducer()
    channels = lanes(Opened(), introduce=judge)
    strangers = await begun(channels, "x", "x", "x")
    judge.rejects.set()

    refusals = await asyncio.gather(*strangers, return_exceptions=True)

    assert [type(refusal) for refusal in refusals] == [Unauthenticated] * 3
    assert judge.asked == ["x"]


async def test_stranger_that_leaves_does_not_cancel_others() -> None:
    judge = Introducer()
    channels = lanes(Opened(), introduce=judge)
    first, second = await begun(channels, "x", "x")

    first.cancel()
    judge.rejects.set()

    with pytest.raises(Unauthenticated):
        await second


async def test_a_token_that_is_no_longer_accepted_loses_its_place() -> None:
    judge, opened = Introducer(), Opened()
    channels = lanes(opened, introduce=judge)
    with pytest.raises(Unauthenticated):
        async with channels.channel("good"):
            raise Unauthenticated("UNKNOWN_TOKEN", "the token is not known")

    await call(channels, "good")

    assert judge.asked == ["good", "good"]
