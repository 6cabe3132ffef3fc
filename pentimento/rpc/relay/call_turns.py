"""Whose call is the next that goes to gRPC: each connection's in turn, and few at a time.

Connections are served by one thread, handlers by another: `taken` alone is called by these, and writes what nobody else
writes. A wake-up that comes too early is made up for by the next one, or by the look that is taken while one waits.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

# Calls that gRPC holds and has not handed over: enough that it never waits for one. Whoever comes waits for these.
MOST_UNTAKEN = 8
# Calls that are reset, late or without a method are never handed over. When for so long none was, none is left.
QUIET_S = 0.002
# What gRPC does to hand a call over takes the event loop a few rounds.
QUIET_ROUNDS = 6

CallLater = Callable[[float, Callable[[], None]], object]


class Waiting(Protocol):
    """A connection whose next call waits for its turn."""

    def let_in(self) -> None:
        """Pass the call on."""


class CallTurns:
    """Counts the calls between the connections and the handlers, and lets the next ones in as those are taken.

    `wake` has the connections' thread call `let_in` soon. `call_later` has it act after so many seconds, or if these
    are 0, after a round of the handlers' event loop."""

    def __init__(self, call_later: CallLater, wake: Callable[[], object], most_untaken: int = MOST_UNTAKEN) -> None:
        self._call_later = call_later
        self._wake = wake
        self._most_untaken = most_untaken
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._begun_count = 0
        self._taken_count = 0
        self._is_woken = False
        self._is_watched = False
        # Of the connections, which keep it.
        self.held_bytes = 0

    def begin(self, connection: Waiting) -> bool:
        """Return whether the connection's next call may go on now; if not, it is let in when it is its turn."""
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
        """Note that a handler has begun with one of the calls."""
        self._taken_count += 1
        if self._waiting and not self._is_woken:
            self._is_woken = True
            self._wake()

    def close(self) -> None:
        """Let nobody in from here on."""
        self._most_untaken = 0

    @property
    def pass_calls(self) -> bool:
        """Whether a call has come, and is or will be let in, that no handler has begun with: as far as is known."""
        return self._begun_count > self._taken_count or (bool(self._waiting) and self._most_untaken > 0)

    def let_in(self) -> None:
        """Let in those whose turn it is."""
        self._is_woken = False
        while self._waiting and self._has_room():
            connection, _ = self._waiting.popitem(last=False)
            self._begun_count += 1
            connection.let_in()

    def _has_room(self) -> bool:
        # What was counted as gone may be taken after all.
        self._begun_count = max(self._begun_count, self._taken_count)
        return self._begun_count - self._taken_count < self._most_untaken

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._look_later(QUIET_S, self._taken_count, QUIET_ROUNDS)

    def _look_later(self, delay_s: float, taken_before: int, rounds: int) -> None:
        self._call_later(delay_s, lambda: self._look(taken_before, rounds))

    def _look(self, taken_before: int, rounds: int) -> None:
        """Count calls as gone that nobody has taken while gRPC had the time to hand them over."""
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
