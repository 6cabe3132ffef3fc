"""Play a world of unit-time steps against the policy, over all kinds of arrivals."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.policies.step_batching import (
    GroupTurns,
    Urgency,
    choose_batch,
    due_at,
    preparing_count,
    reserve_count,
    yields_in_s,
)

AGING_LIMIT_S = 20.0


@dataclass(eq=False)
class Request:
    number: int
    key: str
    arrived_at: int
    deadline: float | None
    remaining: int
    running: bool = False
    done_at: int | None = None

    @property
    def urgency(self) -> Urgency:
        return (due_at(self.arrived_at, self.deadline, AGING_LIMIT_S), self.number)


# Arrival time, group, time from arrival to deadline, and steps. Made once: a new strategy for each request costs more
# than the whole play.
_DRAWN = st.tuples(st.integers(0, 60), st.sampled_from("abc"), st.none() | st.integers(1, 100), st.integers(1, 8))


def arrivals() -> st.SearchStrategy[list[Request]]:
    """Draw many requests as often as few."""
    return st.integers(1, 25).flatmap(lambda count: st.lists(_DRAWN, min_size=count, max_size=count)).map(_in_order)


def _in_order(drawn: list[tuple[int, str, int | None, int]]) -> list[Request]:
    arriving = sorted(drawn, key=lambda request: request[0])
    return [
        Request(number, key, time, None if after is None else float(time + after), steps)
        for number, (time, key, after, steps) in enumerate(arriving)
    ]


limits = st.fixed_dictionaries({key: st.integers(1, 4) for key in "abc"})


@dataclass(frozen=True)
class Tick:
    time: int
    present: tuple[Request, ...]
    batch: tuple[Request, ...]
    begun_before: frozenset[Request]


def play(requests: list[Request], limit: dict[str, int], preempt: bool) -> list[Tick]:
    """Run one batch a tick until all requests are done."""
    ticks: list[Tick] = []
    for time in range(10_000):
        present = [request for request in requests if request.arrived_at <= time and request.remaining]
        if not present:
            if all(request.arrived_at <= time for request in requests):
                return ticks
            continue
        begun = frozenset(request for request in present if request.running)
        batch = choose_batch(present, lambda key: limit[str(key)], preempt=preempt)
        ticks.append(Tick(time, tuple(present), tuple(batch), begun))
        for request in batch:
            request.running = True
            request.remaining -= 1
    raise AssertionError("somebody never ended")


@given(arrivals(), limits, st.booleans())
@settings(deadline=None)
def test_batch_is_of_one_group_within_its_limit(requests: list[Request], limit: dict[str, int], preempt: bool) -> None:
    for tick in play(requests, limit, preempt):
        assert len({request.key for request in tick.batch}) == 1
        assert 1 <= len(tick.batch) <= limit[tick.batch[0].key]
        assert len(set(tick.batch)) == len(tick.batch)


@given(arrivals(), limits)
@settings(deadline=None)
def test_batch_with_preemption_has_earliest_deadlines(requests: list[Request], limit: dict[str, int]) -> None:
    for tick in play(requests, limit, preempt=True):
        assert min(tick.present, key=lambda request: request.urgency) in tick.batch
        key = tick.batch[0].key
        group = sorted((request for request in tick.present if request.key == key), key=lambda other: other.urgency)
        assert list(tick.batch) == group[: limit[key]]


@given(arrivals(), limits)
@settings(deadline=None)
def test_batch_without_preemption_keeps_begun_requests(requests: list[Request], limit: dict[str, int]) -> None:
    for tick in play(requests, limit, preempt=False):
        assert tick.begun_before <= set(tick.batch)


@given(arrivals(), limits)
@settings(deadline=None)
def test_request_waits_only_for_work_due_before(requests: list[Request], limit: dict[str, int]) -> None:
    steps = {request: request.remaining for request in requests}
    ticks = play(requests, limit, preempt=True)
    for request in requests:
        idle = [tick for tick in ticks if request in tick.present and request not in tick.batch]
        ahead = [other for other in requests if other.urgency < request.urgency]
        assert len(idle) <= sum(steps[other] for other in ahead)
        assert all(other.arrived_at <= request.arrived_at + AGING_LIMIT_S for other in ahead)


@given(arrivals(), limits)
@settings(deadline=None)
def test_batch_without_preemption_starts_most_urgent(requests: list[Request], limit: dict[str, int]) -> None:
    for tick in play(requests, limit, preempt=False):
        starting = [request for request in tick.batch if request not in tick.begun_before]
        left_waiting = [
            request for request in tick.present if request not in tick.batch and request not in tick.begun_before
        ]
        for request in starting:
            assert all(request.urgency < other.urgency for other in left_waiting)


def test_due_at_deadline_or_when_aged() -> None:
    deadlines = (None, 7.0, 25.0, 35.0, 1000.0)

    assert [due_at(5.0, deadline, AGING_LIMIT_S) for deadline in deadlines] == [25.0, 7.0, 25.0, 25.0, 25.0]


def test_choose_without_requests_is_empty() -> None:
    assert choose_batch([], lambda key: 1, preempt=True) == []
    assert GroupTurns().choose([], lambda key: 1, preempt=True) == []


def test_yields_in_s_is_the_lead_before_the_end() -> None:
    last_steps = [(1, 10.0), (1, 0.05), (1, 0.01), (3, 0.02), (50, 0.001), (0, 0.4)]

    assert [yields_in_s(*each) for each in last_steps] == pytest.approx([9.95, 0.0, 0.0, 0.01, 0.0, 0.0])
    assert (yields_in_s(2, 10.0), yields_in_s(4, 0.02)) == (None, None)
    assert yields_in_s(10, 0.02, step_count=9) == pytest.approx(0.15)
    assert yields_in_s(10, 0.02, step_count=7) is None


@dataclass(frozen=True)
class Turn:
    """A batch of `key` that took `seconds`; `first`: the group of the most urgent request `present`."""

    key: str
    seconds: float
    first: str
    present: frozenset[str]


def take_turns(requests: list[Request], step_s: dict[str, float]) -> list[Turn]:
    """Run batches of 2 until all requests are done; a request arrives at the end of the step that its second falls
    into."""
    turns, taken, now = GroupTurns(), [], 0.0
    while open_requests := [request for request in requests if request.remaining]:
        present = [request for request in open_requests if request.arrived_at <= now]
        if not present:
            now = min(float(request.arrived_at) for request in open_requests)
            continue
        batch = turns.choose(present, lambda key: 2, preempt=True)
        key, seconds = batch[0].key, step_s[batch[0].key]
        first = min(present, key=lambda request: request.urgency).key
        taken.append(Turn(key, seconds, first, frozenset(request.key for request in present)))
        turns.ran(key, seconds, present)
        now += seconds
        for request in batch:
            request.remaining -= 1
    return taken


step_times = st.fixed_dictionaries({key: st.floats(0.01, 10.0) for key in "abc"})


@given(arrivals(), step_times)
@settings(deadline=None)
def test_group_waits_for_few_steps_of_others(requests: list[Request], step_s: dict[str, float]) -> None:
    waited = dict.fromkeys("abc", 0.0)
    for turn in take_turns(requests, step_s):
        for key in "abc":
            waited[key] = waited[key] + turn.seconds if key in turn.present - {turn.key} else 0.0
        # Three groups: each saves up for its own step, and waits for the steps of the groups before it.
        assert max(waited.values()) <= 2 * 3 * sum(step_s.values())


@given(arrivals(), step_times)
@settings(deadline=None)
def test_group_has_only_turns_it_saved_up(requests: list[Request], step_s: dict[str, float]) -> None:
    saved = dict.fromkeys("abc", 0.0)
    measured: set[str] = set()
    for turn in take_turns(requests, step_s):
        if turn.key != turn.first:
            assert saved[turn.key] > 0.0
            assert saved[turn.key] >= turn.seconds or turn.key not in measured
            saved[turn.key] -= turn.seconds
        measured.add(turn.key)
        for key in turn.present - {turn.key}:
            saved[key] += turn.seconds / len(turn.present)


@given(arrivals(), limits)
@settings(deadline=None)
def test_group_alone_is_batched_by_urgency(requests: list[Request], limit: dict[str, int]) -> None:
    turns = GroupTurns()
    alone = [request for request in requests if request.key == requests[0].key]
    for _ in range(20):
        batch = turns.choose(alone, lambda key: limit[str(key)], preempt=True)
        turns.ran(alone[0].key, 1.0, alone)
        assert batch == sorted(alone, key=lambda request: request.urgency)[: limit[alone[0].key]]


def test_short_request_overtakes_long_one_of_other_size() -> None:
    long, short = Request(0, "large", 0, None, 20), Request(1, "small", 0, None, 20)

    taken = take_turns([long, short], {"large": 0.8, "small": 0.003})

    assert [turn.key for turn in taken] == ["large", *["small"] * 20, *["large"] * 19]


def test_most_urgent_group_has_twice_the_time() -> None:
    urgent, patient = Request(0, "a", 0, 1.0, 200), Request(1, "b", 0, None, 100)

    taken = take_turns([urgent, patient], {"a": 1.0, "b": 1.0})

    halfway = taken[:150]
    assert sum(turn.key == "b" for turn in halfway) == pytest.approx(50, abs=1)


def test_long_step_waits_until_saved_up() -> None:
    first = [Request(0, "small", 0, 1.0, 10), Request(1, "large", 0, None, 1)]
    turns = GroupTurns()
    turns.ran("large", 1.0, [])
    order = []

    for _ in range(10):
        batch = turns.choose(first, lambda key: 1, preempt=True)
        turns.ran(batch[0].key, 0.1, first)
        order.append(batch[0].key)

    assert order == ["small"] * 10


def test_reserve_and_preparing_count_are_a_quarter_rounded_up() -> None:
    limits = (1, 2, 4, 5, 8)

    assert [reserve_count(limit) for limit in limits] == [1, 1, 1, 2, 2]
    assert [preparing_count(limit) for limit in limits] == [1, 1, 1, 2, 2]


def test_group_turn_prefers_urgent_to_begun_requests_unless_nothing_is_preempted() -> None:
    first = Request(0, "a", 0, 1.0, 9, running=True)
    begun, urgent = Request(1, "b", 0, 9.0, 9, running=True), Request(2, "b", 0, 5.0, 9)
    turns = GroupTurns()
    turns.ran("a", 1.0, [first, begun, urgent])

    assert turns.choose([first, begun, urgent], lambda key: 1, preempt=True) == [urgent]
    assert turns.choose([first, urgent], lambda key: 1, preempt=False) == [first]


@pytest.mark.parametrize(("later_count", "chosen"), [(255, "saved"), (256, "first")])
def test_group_turns_remember_256_groups(later_count: int, chosen: str) -> None:
    """A group that was forgotten has nothing saved."""
    first, saved = Request(0, "first", 0, 1.0, 9), Request(1, "saved", 0, None, 9)
    turns = GroupTurns()
    turns.ran("first", 1.0, [first, saved])
    for number in range(later_count):
        turns.ran(f"later {number}", 1.0, [])

    assert [each.key for each in turns.choose([first, saved], lambda key: 1, preempt=True)] == [chosen]


def test_group_turns_of_equal_steps_alternate_as_saved() -> None:
    """Its first turn is free, and is paid for afterwards."""
    urgent, patient = Request(0, "a", 0, 1.0, 8), Request(1, "b", 0, None, 4)

    taken = take_turns([urgent, patient], {"a": 1.0, "b": 1.0})

    assert "".join(turn.key for turn in taken) == "abaaabaabaab"


def test_group_turns_forget_oldest_groups() -> None:
    first, saved = Request(0, "first", 0, 1.0, 9), Request(1, "saved", 0, None, 9)
    turns = GroupTurns()
    turns.ran("first", 1.0, [first, saved])
    for number in range(200):
        turns.ran(f"earlier {number}", 1.0, [])
    turns.ran("first", 1.0, [first, saved])
    for number in range(100):
        turns.ran(f"later {number}", 1.0, [])

    assert turns.choose([first, saved], lambda key: 1, preempt=True) == [saved]


def test_group_turns_ran_before_choice_costs_nothing() -> None:
    turns = GroupTurns()
    turns.ran("a", 1.0, [])

    assert (turns._share("a").saved_s, turns._share("a").step_s) == (0.0, 1.0)
