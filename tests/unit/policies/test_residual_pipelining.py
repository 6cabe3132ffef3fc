"""Choose the steps that use residuals of the previous step: by numbers decided once, never by the clock."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.residual_pipelining import (
    PipeliningBound,
    PipeliningMode,
    ResidualSteps,
    ResidualWaits,
    allowed_from_step,
    allowed_from_step_of_all,
    first_alike_step,
    pipelined_from,
    wait_share,
)

# The first controlled step, the number of controlled steps, and the first pipelined step.
SCHEDULES = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 31))


@pytest.mark.parametrize(
    ("cosines", "first"),
    [
        ([0.996, 0.998, 0.989, 0.998, 0.999], 4),
        ([0.98, 0.999, 0.992, 0.995], 2),
        ([0.999, 0.999], 1),
        ([0.9901, 0.99], 0),
        ([0.99, 0.9901], 2),
        ([0.999, math.nan, 0.999], 3),
        ([0.9, 0.9], 0),
        ([], 0),
    ],
)
def test_last_unlike_step_keeps_earlier_ones_synchronous(cosines: list[float], first: int) -> None:
    assert first_alike_step(cosines) == first


@given(cosines=st.lists(st.floats(0.98, 1.0), max_size=50))
def test_first_alike_step_is_earliest_of_alike_rest(cosines: list[float]) -> None:
    first = first_alike_step(cosines)

    if first:
        assert all(cosine > 0.99 for cosine in cosines[first - 1 :])
        assert first == 1 or not cosines[first - 2] > 0.99
    else:
        assert not cosines or not cosines[-1] > 0.99


@pytest.mark.parametrize(
    ("bounds", "step_count", "first"),
    [
        ([(50, 4)], 50, 4),
        ([(50, 4)], 100, 8),
        ([(50, 4)], 60, 5),
        ([(50, 4)], 49, 0),
        ([(20, 6), (50, 4)], 30, 9),
        ([(20, 6), (50, 4)], 51, 5),
        ([(20, 0), (50, 4)], 30, 0),
        ([(20, 0), (50, 4)], 50, 4),
        ([(2, 1)], 2, 1),
        ([(1, 1)], 1, 0),
        ([], 50, 0),
    ],
)
def test_bound_holds_from_measured_step_count_on(bounds: list[tuple[int, int]], step_count: int, first: int) -> None:
    assert allowed_from_step([PipeliningBound(*bound) for bound in bounds], step_count) == first


def test_all_of_a_requests_controlnets_have_to_allow_it() -> None:
    assert allowed_from_step_of_all([4, 2]) == 4
    assert allowed_from_step_of_all([4, 0]) == 0
    assert allowed_from_step_of_all([]) == 0


def test_steps_use_own_residuals_before_bound_and_previous_ones_after() -> None:
    steps = ResidualSteps(range(0, 7), 3)

    assert [steps.used_in(step) for step in range(8)] == [0, 1, 2, 2, 3, 4, 5, None]
    assert [steps.is_asked_in(step) for step in range(8)] == [True] * 6 + [False] * 2


def test_the_first_step_in_which_it_acts_is_its_own_wherever_that_is() -> None:
    begun_late = ResidualSteps(range(5, 9), 3)

    assert [begun_late.used_in(step) for step in range(4, 10)] == [None, 5, 5, 6, 7, None]
    assert [step for step in range(10) if begun_late.is_asked_in(step)] == [5, 6, 7]


@given(schedule=SCHEDULES)
def test_used_residuals_are_exactly_the_requested_ones(schedule: tuple[int, int, int]) -> None:
    start, length, pipelined_from = schedule
    steps = ResidualSteps(range(start, start + length), pipelined_from)

    used = [steps.used_in(step) for step in range(start + length + 2)]

    asked = {step for step in range(start + length + 2) if steps.is_asked_in(step)}
    assert asked == {step for step in used if step is not None}
    assert all(source is None or step - 1 <= source <= step for step, source in enumerate(used))
    if not pipelined_from:
        assert used == [step if step in steps.acting else None for step in range(start + length + 2)]


@pytest.mark.parametrize(
    ("mode", "share", "first"),
    [
        (PipeliningMode.OFF, 0.9, 0),
        (PipeliningMode.ON, None, 4),
        (PipeliningMode.ON, 0.0, 4),
        (PipeliningMode.AUTO, None, 0),
        (PipeliningMode.AUTO, 0.09, 0),
        (PipeliningMode.AUTO, 0.1, 4),
    ],
)
def test_by_itself_only_where_waiting_was_seen_to_cost_too_much(
    mode: PipeliningMode, share: float | None, first: int
) -> None:
    assert pipelined_from(mode, 4, share) == first
    assert pipelined_from(mode, 0, share) == 0


def test_waits_are_kept_by_set_of_controlnets_and_follow_last_image() -> None:
    waits = ResidualWaits()
    waits.learn(["edges", "layout"], 0.5)

    assert waits.share(["layout", "edges"]) == 0.5
    assert waits.share(["edges"]) is None

    waits.learn(["edges", "layout"], 0.0)
    assert waits.share(["edges", "layout"]) == pytest.approx(0.4)


def test_waits_of_unused_sets_are_forgotten() -> None:
    waits = ResidualWaits()
    for number in range(1024):
        waits.learn([str(number)], 0.5)
    waits.learn(["0"], 0.5)
    waits.learn(["new"], 0.5)

    assert waits.share(["0"]) == 0.5
    assert waits.share(["1"]) is None


def test_wait_share_counts_synchronous_steps_after_the_first() -> None:
    # Ten steps of a second of work; the first waits for its streams, the next three a second each.
    waits_s = {0: 30.0, 1: 1.0, 2: 1.0, 3: 1.0}

    assert wait_share(waits_s, range(4), 10, 43.0) == pytest.approx(0.5)
    assert wait_share(waits_s, range(10), 10, 43.0) == pytest.approx(0.25)
    assert wait_share({}, range(10), 10, 10.0) == 0.0


def test_image_with_one_synchronous_step_has_no_wait_share() -> None:
    assert wait_share({0: 5.0}, [0], 10, 15.0) is None
    assert wait_share({}, [], 10, 10.0) is None


def test_wait_share_is_at_most_one() -> None:
    assert wait_share({0: 1.0, 1: 2.0}, range(2), 2, 1.0) == 1.0
    assert wait_share({0: 0.0, 1: 1.0}, range(2), 4, 5.0) == pytest.approx(0.5)
    assert wait_share({3: 1.0}, [3, 1], 4, 5.0) == pytest.approx(0.5)
    assert wait_share({1: 1.0}, [3, 1], 4, 5.0) == 0.0


def test_image_may_be_pipelined_from_second_step() -> None:
    assert [ResidualSteps(range(3), 1).used_in(step) for step in range(3)] == [0, 0, 1]
