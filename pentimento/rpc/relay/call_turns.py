"""Choose the next call that goes to gRPC: the connections alternate, and few calls are in gRPC together.

One thread serves connections, another one handlers: the handlers call only `taken`, and only they write its count. A
wake-up that comes too early is repaired by the next one, or by the regular check while calls wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

# Calls that gRPC holds and has not delivered: enough that it never waits for one. A new call waits for these.
MOST_UNTAKEN = 8
# Calls that are reset, late or without a method are never delivered. After this time without a delivery none is left.
QUIET_S = 0.002
# gRPC needs a few rounds of the event loop to deliver a call.
QUIET_ROUNDS = 6

CallLater = Callable[[float, Callable[[], None]], object]


class Waiting(Protocol):
    """Describe a connection with a next call that waits for its turn."""

    def let_in(self) -> None:
        """Pass the call on."""


class CallTurns:
    """Count the calls between the connections and the handlers, and admit the next ones as handlers take them.

    `wake` makes the connections' thread call `let_in` soon. `call_later` makes it act after a delay in seconds or, for
    0, after a round of the handlers' event loop."""

    def __init__(self, call_later: CallLater, wake: Callable[[], object], most_untaken: int = MOST_UNTAKEN) -> None:
        self._call_later = call_later
        self._wake = wake
        self._most_untaken = most_untaken
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._begun_count = 0
        self._taken_count = 0
        self._is_woken = False
        self._is_watched = False
        # Held by the connections, which update it.
        self.held_bytes = 0

    def begin(self, connection: Waiting) -> bool:
        """Return whether the connection's next call may continue now; if not, it is admitted later, in order."""
        if not self._waiting and self._has_room():
            self._begun_count += 1
            return True
        self._waiting[connection] = None
        self._watch()
        return False

    def leave(self, connection: Waiting) -> None:
        """Forget a connection that has ended, waiting or not."""
        self._waiting.pop(connection, None)

    def taken(self) -> None:
        """Record that a handler has begun one of the calls."""
        self._taken_count += 1
        if self._waiting and not self._is_woken:
            self._is_woken = True
            self._wake()

    def close(self) -> None:
        """Admit no call from here on."""
        self._most_untaken = 0

    @property
    def pass_calls(self) -> bool:
        """Return whether a call, admitted now or later, is known that no handler has begun."""
        return self._begun_count > self._taken_count or (bool(self._waiting) and self._most_untaken > 0)

    def let_in(self) -> None:
        self._is_woken = False
        while self._waiting and self._has_room():
            connection, _ = self._waiting.popitem(last=False)
            self._begun_count += 1
            connection.let_in()

    def _has_room(self) -> bool:
        # A call that was counted as lost may be taken after all.
        self._begun_count = max(self._begun_count, self._taken_count)
        return self._begun_count - self._taken_count < self._most_untaken

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._look_later(QUIET_S, self._taken_count, QUIET_ROUNDS)

    def _look_later(self, delay_s: float, taken_before: int, rounds: int) -> None:
        self._call_later(delay_s, lambda: self._look(taken_before, rounds))

    def _look(self, taken_before: int, rounds: int) -> None:
        """Count calls as lost that no handler has taken while gRPC had the time to deliver them."""
        quiet = self._taken_count == taken_before
        if quiet and rounds:
            self._look_later(0.0, taken_before, rounds - 1)
            return
        if quiet:
            self._begun_count = self._taken_count
            self.let_in()
        self._is_watched = False
        if self._waiting:
            self._watch()
