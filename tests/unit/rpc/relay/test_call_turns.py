"""Order of calls: few at a time, connections in turn, and no call waits for one that has ended."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pentimento.rpc.relay.call_turns import QUIET_ROUNDS, QUIET_S, CallTurns


@dataclass
class Clock:
    """Record later calls with their delays."""

    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def call_later(self, delay_s: float, act: Callable[[], None]) -> object:
        self.later.append((delay_s, act))
        return None

    def run_next(self) -> None:
        self.later.pop(0)[1]()


@dataclass(eq=False)
class Line:
    """A connection with calls that wait one behind the other; `log` has the names of all that were let in."""

    name: str
    turns: CallTurns
    log: list[str]
    waiting_count: int = 0

    def offer(self, count: int) -> None:
        self.waiting_count += count
        while self.waiting_count and self.turns.begin(self):
            self._pass_one()

    def let_in(self) -> None:
        self._pass_one()
        self.offer(0)

    def _pass_one(self) -> None:
        self.waiting_count -= 1
        self.log.append(self.name)


def turns_of(most_untaken: int, clock: Clock | None = None) -> CallTurns:
    """Return turns that wake waiting connections at once."""
    turns = CallTurns((clock or Clock()).call_later, lambda: turns.let_in(), most_untaken)
    return turns


def play(most_untaken: int, script: str) -> tuple[str, list[float], str]:
    """Return the connections of the calls that were let in, the delays of the next looks, and after which steps calls
    pass. Steps: `a4` offers four calls of connection a, `-a` ends it, `taken`, `look`, `close`."""
    clock, log, passing = Clock(), list[str](), ""
    turns = turns_of(most_untaken, clock)
    lines = {name: Line(name, turns, log) for name in "ab"}
    for step in script.split():
        if step == "look":
            clock.run_next()
        elif step in ("taken", "close"):
            getattr(turns, step)()
        elif step.startswith("-"):
            turns.leave(lines[step[1:]])
        else:
            lines[step[0]].offer(int(step[1:]))
        passing += "ny"[turns.pass_calls]
    return "".join(log), [delay_s for delay_s, _ in clock.later], passing


@pytest.mark.parametrize(
    ("most_untaken", "script", "let_in", "looks_s", "passing"),
    [
        pytest.param(2, "a2", "aa", [], "y", id="nobody waits, nobody looks"),
        pytest.param(2, "a4 taken", "aaa", [QUIET_S], "yy", id="beyond the bound"),
        pytest.param(1, "a9 b2" + 4 * " taken", "aabab", [QUIET_S], "yyyyyy", id="in turn, whatever each has waiting"),
        pytest.param(1, "a2 b1 -a -a taken", "ab", [QUIET_S], "yyyyy", id="one that has ended gives its turn on"),
        pytest.param(2, "a5 look", "aa", [0.0], "yy", id="a look takes rounds of the event loop"),
        pytest.param(2, "a5" + QUIET_ROUNDS * " look", "aa", [0.0], "y" * 7, id="not given up before the last one"),
        pytest.param(2, "a5 look" + QUIET_ROUNDS * " look", "aaaa", [QUIET_S], "y" * 8, id="given up once it is quiet"),
        pytest.param(2, "a9" + 3 * " taken look", "aaaaa", [QUIET_S], "y" * 7, id="not while calls are taken"),
        pytest.param(1, "a9 look look taken look", "aa", [QUIET_S], "yyyyy", id="taken between two looks"),
        pytest.param(2, "taken taken taken a5", "aa", [QUIET_S], "nnny", id="more taken than let in"),
        pytest.param(1, "a2 taken taken", "aa", [QUIET_S], "yyn", id="calls pass while one waits or is not taken"),
        pytest.param(1, "a2 close taken b1", "a", [QUIET_S], "yynn", id="once closed nobody is let in"),
    ],
)
def test_calls_are_let_in_by_turns(
    most_untaken: int, script: str, let_in: str, looks_s: list[float], passing: str
) -> None:
    assert play(most_untaken, script) == (let_in, looks_s, passing)


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
