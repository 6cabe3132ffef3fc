"""Receive request messages: after their caller is known, in turn, within a time, a bounded number together.

gRPC receives a message whole, up to the server's one limit. It begins on request: until then a peer sends at most a
stream's window. So each message is requested from a place of `ReceivingTurns`, and the places times the server's limit
bound the memory that all peers together can occupy, at any announced size. Quick places alternate among the waiting
keys, each with a share at most. A message that has not arrived within `QUICK_S` moves to a steady place, or loses its
place when others wait. One event loop; no locks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import grpc

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.call_limits import Seats
from pentimento.rpc.errors import message_too_large, not_received, too_many_messages


class ReceivingTurns:
    """Hold places that receive messages, by key: a tenant, or a peer without one."""

    def __init__(self, quick_count: int, steady_count: int, quick_share: int, steady_share: int) -> None:
        """Open the places. The shares bound one key's places of each kind."""
        self._quick = Seats(quick_count, quick_share)
        self._steady = Seats(steady_count, steady_share)
        # Keys in the order of their turns, each with its waiting calls.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waited_for(self) -> bool:
        """Return whether a call waits for a quick place."""
        return any(not one.done() for queue in self._waiting.values() for one in queue)

    async def enter(self, key: str) -> None:
        """Return with a quick place, to be left by `leave` or exchanged by `settle`."""
        if self._quick.has_room(key):
            self._quick.take(key)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(key)
            raise

    def leave(self, key: str) -> None:
        """Give the key's quick place to the next key in turn that may have it."""
        self._quick.leave(key)
        while (following := next(filter(self.may_enter, self._waiting), None)) is not None:
            queue = self._waiting.pop(following)
            turn = queue.popleft()
            if queue:
                self._waiting[following] = queue
            if not turn.done():
                self._quick.take(following)
                turn.set_result(None)
                return

    def may_enter(self, key: str) -> bool:
        """Return whether there is a quick place for the key now."""
        return self._quick.has_room(key)

    def settle(self, key: str) -> bool:
        """Take a steady place, to be left by `unsettle`; False if there is none for this key."""
        if not self._steady.has_room(key):
            return False
        self._steady.take(key)
        return True

    def unsettle(self, key: str) -> None:
        self._steady.leave(key)


Context = grpc.aio.ServicerContext[Any, Any]
QUICK_S = 0.25
# Extra time for a slow peer for each MiB that its method allows.
SECONDS_PER_MEBIBYTE = 1.0
MEBIBYTE = 1 << 20
END = grpc.aio.EOF


class Intake:
    """Receive the messages of one server."""

    def __init__(self, largest_bytes: int, budget_bytes: int, timeout_s: float, *, shared: bool) -> None:
        """Open the places. `shared`: callers are of several tenants, and none may hold more than half of the places."""
        count = max(budget_bytes // largest_bytes, 2)
        quick_count = max(count // 4, 1)
        steady_count = count - quick_count
        quick_share, steady_share = quick_count, steady_count
        if shared:
            quick_share, steady_share = max(quick_count // 2, 1), max(steady_count // 2, 1)
        self._turns = ReceivingTurns(quick_count, steady_count, quick_share, steady_share)
        self._timeout_s = timeout_s

    async def one(self, context: Context, key: str, limit_bytes: int, *, may_settle: bool) -> bytes:
        """Return the only message of a call, of at most `limit_bytes`.

        DeadlineExceeded if it does not arrive in time, ResourceExhausted if others need its place or it is too large,
        InvalidArgument if the call ended without it.
        """
        until = asyncio.get_running_loop().time() + self.seconds_for(limit_bytes)
        place = Place(self._turns, key, until, may_settle=may_settle)
        try:
            async with asyncio.timeout(None) as limit:
                data = await place.receive(context, limit)
        except TimeoutError:
            raise (not_received() if place.in_turn else too_many_messages()) from None
        if data is END:
            raise InvalidArgument("NO_MESSAGE", "the call ended without a request message")
        return checked(data, limit_bytes)

    def keep_place(self, key: str) -> None:
        """Keep a place for a stream of messages, until `leave_place`: whether a message is in transit is unknown.

        ResourceExhausted if there is none for this key.
        """
        if not self._turns.settle(key):
            raise too_many_messages()

    def leave_place(self, key: str) -> None:
        self._turns.unsettle(key)

    async def many(self, context: Context, limit_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a stream, each of at most `limit_bytes`. DeadlineExceeded if the first does not arrive
        in time."""
        try:
            async with asyncio.timeout(self.seconds_for(limit_bytes)):
                data = await context.read()
        except TimeoutError:
            raise not_received() from None
        while data is not END:
            yield checked(data, limit_bytes)
            data = await context.read()

    def seconds_for(self, limit_bytes: int) -> float:
        """Return the time that a message of `limit_bytes` may take."""
        return self._timeout_s + SECONDS_PER_MEBIBYTE * (limit_bytes / MEBIBYTE)


class Place:
    """Receive one message at a place."""

    __slots__ = ("_key", "_may_settle", "_settled", "_timer", "_turns", "_until", "in_turn")

    def __init__(self, turns: ReceivingTurns, key: str, until: float, *, may_settle: bool) -> None:
        """Prepare to receive. `until`: the latest arrival of the message, by the event loop's clock."""
        self._turns = turns
        self._key = key
        self._until = until
        self._may_settle = may_settle
        self._settled = False
        # False while it waits for its turn, and again after others got it.
        self.in_turn = False

    async def receive(self, context: Context, limit: asyncio.Timeout) -> Any:
        """Return the next message, or END. `limit`, which has no end yet, expires if the message does not arrive in
        time, or if others need the place."""
        await self._enter(limit)
        self.in_turn = True
        self._look_later(limit)
        try:
            return await context.read()
        finally:
            self._timer.cancel()
            if self._settled:
                self._turns.unsettle(self._key)
            else:
                self._turns.leave(self._key)

    async def _enter(self, limit: asyncio.Timeout) -> None:
        """Enter a quick place. Most messages get one immediately: the end is set only for a wait."""
        if asyncio.get_running_loop().time() + QUICK_S >= self._until or not self._turns.may_enter(self._key):
            limit.reschedule(self._until)
        await self._turns.enter(self._key)

    def _look_later(self, limit: asyncio.Timeout) -> None:
        self._timer = asyncio.get_running_loop().call_later(QUICK_S, self._look, limit)

    def _look(self, limit: asyncio.Timeout) -> None:
        """Move a slow message to a steady place; if there is none, end it once others wait."""
        if limit.when() is None:
            limit.reschedule(self._until)
        if self._may_settle and self._turns.settle(self._key):
            self._settled = True
            self._turns.leave(self._key)
        elif self._turns.waited_for:
            self.in_turn = False
            limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._look_later(limit)


def checked(data: bytes, limit_bytes: int) -> bytes:
    if len(data) > limit_bytes:
        raise message_too_large(str(len(data)), str(limit_bytes))
    return data
