"""Connections to another service on behalf of callers: each caller's own, with its own token, bounded.

A server bounds the calls of one connection, so that callers who shared one would wait for each other. Nothing here
judges a token: the service that is called does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from pentimento.domain.errors import ResourceExhausted

# Of the 100 that a server with tenants takes on a connection; some room is left for calls that are just ending.
CALLS_PER_CONNECTION = 96
RETRY_AFTER_MS = 1000


@dataclass
class CallerConnection:
    """A connection, and how many calls are open on it."""

    channel: grpc.aio.Channel
    call_count: int = 0


@dataclass
class CallerLane:
    """The connections of one caller."""

    connections: list[CallerConnection] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not any(connection.call_count for connection in self.connections)


class CallerChannels:
    """`open_for` opens a channel that shows the token given to it, or none."""

    def __init__(
        self, open_for: Callable[[str | None], grpc.aio.Channel], max_callers: int, connections_per_caller: int
    ) -> None:
        self._open_for = open_for
        self._max_callers = max_callers
        self._connections_per_caller = connections_per_caller
        self._lanes: OrderedDict[str | None, CallerLane] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def channel(self, token: str | None) -> AsyncIterator[grpc.aio.Channel]:
        """Give a channel for one call. ResourceExhausted TOO_MANY_CALLS where the caller has as many open as it may,
        TOO_MANY_CALLERS where nobody's connections can give way."""
        connection = self._take(token)
        connection.call_count += 1
        try:
            yield connection.channel
        finally:
            connection.call_count -= 1

    def _take(self, token: str | None) -> CallerConnection:
        lane = self._lane(token)
        for connection in lane.connections:
            if connection.call_count < CALLS_PER_CONNECTION:
                return connection
        if len(lane.connections) >= self._connections_per_caller:
            limit = CALLS_PER_CONNECTION * self._connections_per_caller
            raise ResourceExhausted(
                "TOO_MANY_CALLS", f"a caller may have {limit} requests under way", retry_after_ms=RETRY_AFTER_MS
            )
        lane.connections.append(CallerConnection(self._open_for(token)))
        return lane.connections[-1]

    def _lane(self, token: str | None) -> CallerLane:
        lane = self._lanes.get(token)
        if lane is None:
            self._make_room()
            lane = self._lanes[token] = CallerLane()
        self._lanes.move_to_end(token)
        return lane

    def _make_room(self) -> None:
        if len(self._lanes) < self._max_callers:
            return
        token = next((token for token, lane in self._lanes.items() if lane.idle), ...)
        if token is ...:
            raise ResourceExhausted(
                "TOO_MANY_CALLERS",
                f"{self._max_callers} callers have requests under way",
                retry_after_ms=RETRY_AFTER_MS,
            )
        for connection in self._lanes.pop(token).connections:
            closing = asyncio.ensure_future(connection.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection."""
        lanes, self._lanes = list(self._lanes.values()), OrderedDict()
        for lane in lanes:
            for connection in lane.connections:
                await connection.channel.close()
        await asyncio.gather(*self._closing)
