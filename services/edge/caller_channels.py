"""Bounded connections to another service on behalf of callers, each caller with its own connections and token.

A server bounds the calls of one connection, so callers on a shared connection would wait for each other. The called
service decides about tokens, and delays the rejection of unknown ones. A token is therefore a stranger until that
service has accepted it once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain

import grpc.aio

from pentimento.domain.errors import FailedPrecondition, PermissionDenied, ResourceExhausted, Unauthenticated

# A server with tenants accepts 100 calls per connection; 4 are left for calls that are just ending.
CALLS_PER_CONNECTION = 96
# Callers with own connections; the longest idle one is dropped for a further one.
MAX_CALLERS = 256
CONNECTIONS_PER_CALLER = 8
# Tokens without an answer to their first call. A known token gets one in milliseconds, so the oldest is unknown.
MAX_STRANGERS = 256
RETRY_AFTER_MS = 1000

Opener = Callable[[str | None], grpc.aio.Channel]
# Makes one short call with the token on the channel. Raises Unauthenticated if the token is unknown.
Introduction = Callable[[str | None, grpc.aio.Channel], Awaitable[object]]


@dataclass
class CallerConnection:
    channel: grpc.aio.Channel
    call_count: int = 0


# The connections of one caller.
CallerLane = list[CallerConnection]


def is_idle(lane: CallerLane) -> bool:
    return not any(connection.call_count for connection in lane)


class CallerChannels:
    """Open channels with a caller's token.

    `open_for` opens a channel that sends the given token, or none; `introduce` tests whether the token is accepted."""

    def __init__(self, open_for: Opener, introduce: Introduction) -> None:
        self._open_for = open_for
        self._introduce = introduce
        self._lanes: OrderedDict[str | None, CallerLane] = OrderedDict()
        self._strangers: OrderedDict[str | None, asyncio.Task[None]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def channel(self, token: str | None) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel for one call. Unauthenticated for an unknown token. ResourceExhausted TOO_MANY_CALLS at the
        limit of the caller's open calls, TOO_MANY_CALLERS if no idle connections can be closed."""
        while token not in self._lanes:
            await self._introduced(token)
        connection = self._take(token)
        connection.call_count += 1
        is_known = True
        try:
            yield connection.channel
        except Unauthenticated:
            is_known = False
            raise
        finally:
            connection.call_count -= 1
            if not is_known:
                self._forget(token)

    async def _introduced(self, token: str | None) -> None:
        """Wait until the token has a lane. Calls with the same token wait for one introduction."""
        introduction = self._strangers.get(token)
        if introduction is None:
            self._make_room_for_stranger()
            introduction = self._strangers[token] = asyncio.ensure_future(self._open_lane(token))
            introduction.add_done_callback(lambda done: self._leave_strangers(token, done))
        try:
            await asyncio.shield(introduction)
        except asyncio.CancelledError:
            if introduction.cancelled():
                raise too_many_callers("too many unknown tokens wait for their rejection") from None
            raise

    async def _open_lane(self, token: str | None) -> None:
        channel = self._open_for(token)
        try:
            # Both errors mean that the token is known, only not allowed this call.
            with suppress(PermissionDenied, FailedPrecondition):
                await self._introduce(token, channel)
            self._make_room()
        except BaseException:
            self._close_soon(channel)
            raise
        self._lanes[token] = [CallerConnection(channel)]

    def _leave_strangers(self, token: str | None, done: "asyncio.Task[None]") -> None:
        if self._strangers.get(token) is done:
            del self._strangers[token]
        if not done.cancelled():
            # Retrieve the exception: asyncio logs it otherwise if all callers have disconnected.
            done.exception()

    def _make_room_for_stranger(self) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            _, oldest = self._strangers.popitem(last=False)
            oldest.cancel()

    def _take(self, token: str | None) -> CallerConnection:
        lane = self._lanes[token]
        self._lanes.move_to_end(token)
        for connection in lane:
            if connection.call_count < CALLS_PER_CONNECTION:
                return connection
        if len(lane) >= CONNECTIONS_PER_CALLER:
            limit = CALLS_PER_CONNECTION * CONNECTIONS_PER_CALLER
            raise ResourceExhausted(
                "TOO_MANY_CALLS", f"a caller may have {limit} running requests", retry_after_ms=RETRY_AFTER_MS
            )
        lane.append(CallerConnection(self._open_for(token)))
        return lane[-1]

    def _make_room(self) -> None:
        if len(self._lanes) < MAX_CALLERS:
            return
        token = next((token for token, lane in self._lanes.items() if is_idle(lane)), ...)
        if token is ...:
            raise too_many_callers(f"{MAX_CALLERS} callers have running requests")
        self._drop(token)

    def _forget(self, token: str | None) -> None:
        """Drop the lane of a token that is no longer accepted, if it is idle."""
        lane = self._lanes.get(token)
        if lane is not None and is_idle(lane):
            self._drop(token)

    def _drop(self, token: str | None) -> None:
        for connection in self._lanes.pop(token):
            self._close_soon(connection.channel)

    def _close_soon(self, channel: grpc.aio.Channel) -> None:
        closing = asyncio.ensure_future(channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        strangers = list(self._strangers.values())
        for stranger in strangers:
            stranger.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        lanes, self._lanes = list(self._lanes.values()), OrderedDict()
        for connection in chain(*lanes):
            await connection.channel.close()
        await asyncio.gather(*self._closing)


def too_many_callers(why: str) -> ResourceExhausted:
    return ResourceExhausted("TOO_MANY_CALLERS", why, retry_after_ms=RETRY_AFTER_MS)
