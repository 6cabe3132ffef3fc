"""Whose call is next: few at a time, each connection's in turn, and nobody waits for calls that are gone."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pentimento.rpc.relay.call_turns import QUIET_S, CallTurns


@dataclass
class Clock:
    """Keeps what is to be done later, with the delay that was asked for."""

    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def call_later(self, delay_s: float, act: Callable[[], None]) -> object:
        self.later.append((delay_s, act))
        return None

    def run_next(self) -> float:
        delay_s, act = self.later.pop(0)
        act()
        return delay_s


@dataclass(eq=False)
class Line:
    """A connection with calls that wait one behind the other; `log` has the names of all that were let in."""

    name: str
    turns: CallTurns
    log: list[str]
    waiting_count: int = 0

    def offer(self, count: int) -> None:
        self.waiting_count += count
        self._go_on()

    def let_in(self) -> None:
        self._pass_one()
        self._go_on()

    def _go_on(self) -> None:
        while self.waiting_count and self.turns.begin(self):
            self._pass_one()

    def _pass_one(self) -> None:
        self.waiting_count -= 1
        self.log.append(self.name)


def turns_of(most_untaken: int, clock: Clock | None = None) -> CallTurns:
    """Turns whose waiting connections are woken at once."""
    turns = CallTurns((clock or Clock()).call_later, lambda: turns.let_in(), most_untaken)
    return turns


def test_calls_beyond_the_bound_wait_until_others_are_taken() -> None:
    log: list[str] = []
    turns = turns_of(2)

    Line("a", turns, log).offer(4)
    at_once = len(log)
    turns.taken()

    assert (at_once, len(log)) == (2, 3)


def test_connections_take_turns_whatever_they_have_waiting() -> None:
    log: list[str] = []
    turns = turns_of(1)
    busy, modest = Line("busy", turns, log), Line("modest", turns, log)

    busy.offer(100)
    modest.offer(2)
    for _ in range(4):
        turns.taken()

    assert log == ["busy", "busy", "modest", "busy", "modest"]


def test_a_connection_that_has_ended_gives_its_turn_on() -> None:
    log: list[str] = []
    turns = turns_of(1)
    gone, next_one = Line("gone", turns, log), Line("next", turns, log)
    gone.offer(2)
    next_one.offer(1)

    turns.leave(gone)
    turns.leave(gone)
    turns.taken()

    assert log == ["gone", "next"]


def test_calls_that_nobody_takes_are_given_up_once_it_is_quiet() -> None:
    log: list[str] = []
    clock = Clock()
    turns = turns_of(2, clock)
    Line("a", turns, log).offer(5)

    first_delay_s = clock.run_next()
    while clock.later and clock.later[0][0] == 0.0:
        clock.run_next()

    assert first_delay_s == QUIET_S
    assert len(log) == 4


def test_while_calls_are_taken_none_is_given_up() -> None:
    log: list[str] = []
    clock = Clock()
    turns = turns_of(2, clock)
    Line("a", turns, log).offer(9)

    for _ in range(3):
        turns.taken()
        clock.run_next()

    assert len(log) == 5
    assert [delay_s for delay_s, _ in clock.later] == [QUIET_S]


def test_a_call_that_is_taken_between_two_looks_is_seen_before_any_is_given_up() -> None:
    log: list[str] = []
    clock = Clock()
    turns = turns_of(1, clock)
    Line("a", turns, log).offer(9)

    clock.run_next()
    clock.run_next()
    turns.taken()
    clock.run_next()

    assert len(log) == 2
    assert [delay_s for delay_s, _ in clock.later] == [QUIET_S]


def test_nobody_is_watched_while_nobody_waits() -> None:
    clock = Clock()
    turns = turns_of(2, clock)

    Line("a", turns, []).offer(2)

    assert clock.later == []


def test_more_taken_than_let_in_does_not_raise_the_bound() -> None:
    log: list[str] = []
    turns = turns_of(2)

    for _ in range(10):
        turns.taken()
    Line("a", turns, log).offer(5)

    assert len(log) == 2


def test_many_that_are_taken_wake_the_connections_once() -> None:
    log: list[str] = []
    woken: list[int] = []
    turns = CallTurns(Clock().call_later, lambda: woken.append(1), 2)
    Line("a", turns, log).offer(5)

    turns.taken()
    turns.taken()
    before = len(log)
    turns.let_in()
    turns.taken()

    assert (before, len(log), len(woken)) == (2, 4, 2)


def test_calls_pass_while_one_waits_or_is_not_taken_yet() -> None:
    turns = turns_of(1)
    passing = [turns.pass_calls]
    Line("a", turns, []).offer(2)
    passing.append(turns.pass_calls)
    turns.taken()
    passing.append(turns.pass_calls)
    turns.taken()

    assert [*passing, turns.pass_calls] == [False, True, True, False]


def test_once_they_are_closed_nobody_is_let_in_and_only_those_before_pass() -> None:
    log: list[str] = []
    turns = turns_of(1)
    Line("a", turns, log).offer(2)

    turns.close()
    passing = [turns.pass_calls]
    turns.taken()
    Line("b", turns, log).offer(1)

    assert (log, [*passing, turns.pass_calls]) == (["a"], [True, False])
