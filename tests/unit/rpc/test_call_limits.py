"""Test when calls of one key begin."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pentimento.domain.errors import ResourceExhausted
from pentimento.rpc import call_limits
from pentimento.rpc.call_limits import BURST_CALLS, MOST_EDGES, CallShaper, EdgeCalls, Seats


@dataclass
class Timers:
    """A clock that a test moves, with its later calls."""

    now_s: float = 100.0
    waiting: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        handle = asyncio.TimerHandle(loop.time() + delay_s, act, (), loop)
        self.waiting.append((self.now_s + delay_s, act, handle))
        return handle

    async def pass_s(self, seconds: float) -> None:
        """Let the time pass at once, as after a late event loop."""
        self.now_s += seconds
        due = [timer for timer in self.waiting if timer[0] <= self.now_s + 1e-9 and not timer[2].cancelled()]
        self.waiting = [timer for timer in self.waiting if timer not in due and not timer[2].cancelled()]
        for _, act, _ in due:
            act()
        await settle()


class Calls:
    """Calls of a shaper, in order."""

    def __init__(self, shaper: CallShaper) -> None:
        self._shaper = shaper
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, count: int, key: str = "a") -> None:
        self.tasks += [asyncio.create_task(self._shaper.begin(key)) for _ in range(count)]
        await settle()

    @property
    def begun_count(self) -> int:
        return sum(task.done() and not task.cancelled() and task.exception() is None for task in self.tasks)

    def refusal(self, index: int) -> ResourceExhausted:
        error = self.tasks[index].exception()
        assert isinstance(error, ResourceExhausted)
        return error

    async def leave(self, *indexes: int) -> None:
        for index in indexes:
            self.tasks[index].cancel()
        await settle()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
def timers() -> Timers:
    return Timers()


def shaped(timers: Timers, calls_per_s: float = 10.0) -> Calls:
    return Calls(CallShaper(calls_per_s, timers.monotonic, timers.call_later))


async def test_a_burst_begins_at_once_and_the_rest_in_its_order_at_the_rate(timers: Timers) -> None:
    calls = shaped(timers)
    await calls.ask(BURST_CALLS + 3)
    begun = [calls.begun_count]

    for _ in range(3):
        await timers.pass_s(0.1)
        begun.append(calls.begun_count)

    assert begun == [32, 33, 34, 35]
    assert calls.tasks[32].done() and calls.tasks[33].done()
    assert timers.waiting == []


B = BURST_CALLS
# Steps: (count of calls, key), seconds that pass with or without the timers, or a range of calls that leave.
Step = tuple[int, str] | float | range


@pytest.mark.parametrize(
    ("calls_per_s", "steps", "begun"),
    [
        pytest.param(10.0, [(B + 3, "a"), 0.1], [*range(B + 1)], id="the first in begins first"),
        pytest.param(10.0, [(B + 5, "a"), 0.3], [*range(B + 3)], id="a late loop lets in all that are due"),
        pytest.param(10.0, [(B + 1, "a"), (B, "b")], [*range(B), *range(B + 1, 2 * B + 1)], id="keys are apart"),
        pytest.param(10.0, [(B, "a"), 1000.0, (B + 1, "a")], [*range(2 * B)], id="a pause gives the burst back"),
        pytest.param(8.0, [(B, "a"), 0.125, (1, "a")], [*range(B + 1)], id="just when it may"),
        pytest.param(10.0, [(B + 1, "a"), -1.0, (1, "a")], [*range(B)], id="behind those that wait"),
        pytest.param(10.0, [(B + 100, "a"), range(B, B + 99), 0.1], [*range(B), B + 99], id="turn of those that left"),
        pytest.param(
            10.0, [(B + 50, "a"), range(B, B + 50), (1, "a"), 0.1], [*range(B), B + 50], id="all that wait have left"
        ),
    ],
)
async def test_shaper_begins_calls_in_order_at_rate(
    timers: Timers, calls_per_s: float, steps: list[Step], begun: list[int]
) -> None:
    """Negative seconds pass while the timer is late."""
    calls = shaped(timers, calls_per_s)

    for step in steps:
        if isinstance(step, tuple):
            await calls.ask(*step)
        elif isinstance(step, range):
            await calls.leave(*step)
        elif step < 0:
            timers.now_s -= step
        else:
            await timers.pass_s(step)

    assert [index for index, task in enumerate(calls.tasks) if task.done() and not task.cancelled()] == begun
    await calls.leave(*range(len(calls.tasks)))


async def test_caller_within_rate_never_waits(timers: Timers) -> None:
    calls = shaped(timers)
    for count in range(1, 3 * BURST_CALLS):
        await calls.ask(1)
        assert calls.begun_count == count
        timers.now_s += 0.1


async def test_call_that_leaves_when_due_costs_no_other_turn(timers: Timers) -> None:
    calls = shaped(timers)
    await calls.ask(BURST_CALLS + 2)

    calls.tasks[BURST_CALLS].cancel()
    await timers.pass_s(0.1)

    assert calls.begun_count == BURST_CALLS + 1
    assert calls.tasks[BURST_CALLS].cancelled()


async def test_a_refused_call_does_not_make_the_next_one_wait_longer(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_limits, "WAITING_CALLS_OF_A_KEY", 1)
    calls = shaped(timers)
    await calls.ask(BURST_CALLS + 100)

    await timers.pass_s(0.1)
    await calls.ask(1)
    await timers.pass_s(0.1)

    assert calls.begun_count == BURST_CALLS + 2


async def test_waiting_calls_of_key_are_bounded_with_retry_time(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_limits, "WAITING_CALLS_OF_A_KEY", 20)
    calls = shaped(timers)

    await calls.ask(BURST_CALLS + 21, "a")
    await calls.ask(BURST_CALLS + 1, "b")

    refused = calls.refusal(BURST_CALLS + 20)
    assert refused.reason == "TOO_MANY_CALLS" and refused.retry_after_ms == 2000
    assert refused.message.startswith("20 calls of this tenant or peer wait already")
    assert not calls.tasks[-1].done(), "others have places of their own"
    await calls.leave(*range(len(calls.tasks)))


async def test_waiting_calls_of_all_keys_are_bounded(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "WAITING_CALLS", 2)
    calls = shaped(timers)
    await calls.ask(BURST_CALLS + 1, "a")
    await calls.ask(BURST_CALLS + 2, "b")

    refused = calls.refusal(-1)

    assert refused.reason == "TOO_MANY_CALLS" and refused.retry_after_ms == 250
    assert refused.message.startswith("2 calls wait already")
    await calls.leave(BURST_CALLS)
    await calls.ask(1, "b")
    assert not calls.tasks[-1].done(), "the place of the one that left"
    await calls.leave(*range(len(calls.tasks)))


async def test_places_of_left_or_begun_calls_are_free_again(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "WAITING_CALLS", 1)
    calls = shaped(timers)
    await calls.ask(BURST_CALLS)

    for _ in range(3):
        await calls.ask(1)
        assert not calls.tasks[-1].done()
        await calls.leave(-1)
    for _ in range(3):
        await calls.ask(1)
        await timers.pass_s(0.1)

    assert calls.begun_count == BURST_CALLS + 3


async def test_a_storm_is_not_forgotten_where_there_are_many_keys(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_limits, "_KEPT_KEYS", 2)
    calls = shaped(timers)
    await calls.ask(BURST_CALLS + 1, "storm")
    for key in ("b", "c", "d"):
        await calls.ask(1, key)

    await calls.ask(1, "storm")

    assert [task.done() for task in (calls.tasks[BURST_CALLS], calls.tasks[-1])] == [False, False]
    await calls.leave(*range(len(calls.tasks)))


async def test_idle_keys_are_dropped_beyond_1024(timers: Timers) -> None:
    shaper = CallShaper(10.0, timers.monotonic, timers.call_later)
    kept = []
    for number in range(1025):
        await shaper.begin(str(number))
        kept.append(len(shaper._due_at))
        timers.now_s += 1.0

    assert kept == [*range(1, 1025), 0]


async def test_close_ends_all_waits(timers: Timers) -> None:
    shaper = CallShaper(10.0, timers.monotonic, timers.call_later)
    calls = Calls(shaper)
    await calls.ask(BURST_CALLS + 2, "a")
    await calls.ask(BURST_CALLS + 1, "b")

    shaper.close()
    await settle()
    await calls.ask(1, "a")
    await timers.pass_s(1.0)

    assert calls.begun_count == 2 * BURST_CALLS + 4


async def test_by_default_the_event_loop_lets_calls_in() -> None:
    shaper = CallShaper(500.0)

    async with asyncio.timeout(30):
        await asyncio.gather(*(shaper.begin("a") for _ in range(BURST_CALLS + 5)))


def taken(seats: Seats, keys: str) -> str:
    """Take a seat for each key, and leave one for `-` and a key; return the last refusal, which takes nothing."""
    told = ""
    for key in keys.split():
        try:
            seats.leave(key[1:]) if key.startswith("-") else seats.take(key)
        except ResourceExhausted as error:
            told = error.message
    return told


SHARE, LIMIT = "already serves 2 calls of this tenant or peer", "max_concurrent_calls = {}"


@pytest.mark.parametrize(
    ("limit", "keys", "told", "left"),
    [
        (3, "a a b", "", {"a": 2, "b": 1}),
        (3, "a a b b", LIMIT.format(3), {"a": 2, "b": 1}),
        (3, "a a b a", LIMIT.format(3), {"a": 2, "b": 1}),
        (4, "a a a", SHARE, {"a": 2}),
        (4, "a a a a b b c", LIMIT.format(4), {"a": 2, "b": 2}),
        # A freed seat is free for all callers, and a caller without a seat is no longer counted.
        (2, 3 * "a a -a b -b -a " + "a b", "", {"a": 1, "b": 1}),
        (9, "a a p q r -a -p -q -r", "", {"a": 1}),
    ],
)
def test_seats_are_bounded_by_limit_and_share_of_key(limit: int, keys: str, told: str, left: dict[str, int]) -> None:
    seats = Seats(limit=limit, share=2)

    message = taken(seats, keys)

    assert (told in message, bool(message), dict(seats._by_key)) == (True, bool(told), left)


class Edges:
    """The calls of edges at a server, with a clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = EdgeCalls(lambda: self.now_s)
        self.ends: list[Callable[[str], None]] = []

    def begin(self, *agents: object) -> None:
        for agent in agents:
            self.calls.begin(agent, self.ends.append)

    @property
    def counts(self) -> tuple[int, int]:
        return self.calls.count, self.calls.running_count


def test_edge_calls_count_edges_and_their_running_calls() -> None:
    edges = Edges()
    edges.begin("pentimento-edge/a grpc-python/1", "pentimento-edge/a grpc-python/1", "pentimento-edge/b grpc-python/1")
    edges.begin("grpc-python/1", None, b"pentimento-edge/c")
    assert edges.counts == (2, 3)

    edges.ends[0]("tenant")
    assert edges.counts == (2, 2)


def test_edge_that_has_not_called_for_a_minute_is_not_counted() -> None:
    edges = Edges()
    edges.begin("pentimento-edge/a")
    edges.now_s = 50.0
    edges.begin("pentimento-edge/b")
    edges.now_s = 61.0

    assert edges.counts == (1, 2)


def test_edges_beyond_the_limit_are_not_remembered() -> None:
    edges = Edges()
    edges.begin(*(f"pentimento-edge/{number}" for number in range(MOST_EDGES + 2)))

    assert edges.counts == (256, 258)
