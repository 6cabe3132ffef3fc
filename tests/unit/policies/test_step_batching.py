"""Who runs next, over all kinds of arrivals: a world of unit-time steps played against the policy."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.policies.step_batching import Urgency, choose_batch, due_at, yielding_steps

PATIENCE = 20.0


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
        return (due_at(self.arrived_at, self.deadline, PATIENCE), self.number)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Request]:
    count = draw(st.integers(1, 25))
    times = sorted(draw(st.lists(st.integers(0, 60), min_size=count, max_size=count)))
    return [
        Request(
            number,
            draw(st.sampled_from("abc")),
            time,
            draw(st.none() | st.integers(1, 100).map(lambda after, time=time: float(time + after))),
            draw(st.integers(1, 8)),
        )
        for number, time in enumerate(times)
    ]


limits = st.fixed_dictionaries({key: st.integers(1, 4) for key in "abc"})


@dataclass(frozen=True)
class Tick:
    time: int
    present: tuple[Request, ...]
    batch: tuple[Request, ...]
    begun_before: frozenset[Request]


def play(requests: list[Request], limit: dict[str, int], preempt: bool) -> list[Tick]:
    """One batch a tick until everybody is done."""
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
def test_a_batch_is_of_one_group_within_its_limit_and_never_empty(
    requests: list[Request], limit: dict[str, int], preempt: bool
) -> None:
    for tick in play(requests, limit, preempt):
        assert len({request.key for request in tick.batch}) == 1
        assert 1 <= len(tick.batch) <= limit[tick.batch[0].key]
        assert len(set(tick.batch)) == len(tick.batch)


@given(arrivals(), limits)
@settings(deadline=None)
def test_with_preemption_the_earliest_deadline_runs_and_fills_its_batch_in_order(
    requests: list[Request], limit: dict[str, int]
) -> None:
    for tick in play(requests, limit, preempt=True):
        assert min(tick.present, key=lambda request: request.urgency) in tick.batch
        key = tick.batch[0].key
        group = sorted((request for request in tick.present if request.key == key), key=lambda other: other.urgency)
        assert list(tick.batch) == group[: limit[key]]


@given(arrivals(), limits)
@settings(deadline=None)
def test_without_preemption_whoever_began_goes_on_to_its_end(requests: list[Request], limit: dict[str, int]) -> None:
    for tick in play(requests, limit, preempt=False):
        assert tick.begun_before <= set(tick.batch)


@given(arrivals(), limits)
@settings(deadline=None)
def test_nobody_waits_for_more_than_the_work_that_was_due_before_it(
    requests: list[Request], limit: dict[str, int]
) -> None:
    steps = {request: request.remaining for request in requests}
    ticks = play(requests, limit, preempt=True)
    for request in requests:
        idle = [tick for tick in ticks if request in tick.present and request not in tick.batch]
        ahead = [other for other in requests if other.urgency < request.urgency]
        assert len(idle) <= sum(steps[other] for other in ahead)
        assert all(other.arrived_at <= request.arrived_at + PATIENCE for other in ahead)


@given(arrivals(), limits)
@settings(deadline=None)
def test_without_preemption_nobody_starts_ahead_of_a_more_urgent_request(
    requests: list[Request], limit: dict[str, int]
) -> None:
    for tick in play(requests, limit, preempt=False):
        starting = [request for request in tick.batch if request not in tick.begun_before]
        left_waiting = [
            request for request in tick.present if request not in tick.batch and request not in tick.begun_before
        ]
        for request in starting:
            assert all(request.urgency < other.urgency for other in left_waiting)


def test_a_far_deadline_ages_like_none() -> None:
    assert due_at(5.0, 1000.0, PATIENCE) == due_at(5.0, None, PATIENCE) == 25.0
    assert due_at(5.0, 7.0, PATIENCE) == 7.0


def test_nobody_there_makes_no_batch() -> None:
    assert choose_batch([], lambda key: 1, preempt=True) == []


@pytest.mark.parametrize(("step_s", "steps"), [(10.0, 1), (0.05, 1), (0.03, 2), (0.001, 50), (0.0, 1)])
def test_a_place_is_yielded_steps_before_the_end_that_last_as_long_as_the_next_one_is_on_its_way(
    step_s: float, steps: int
) -> None:
    assert yielding_steps(step_s) == steps
