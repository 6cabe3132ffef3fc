"""Test the steps of an emulated attempt that is thinned."""

import pytest

from lab.emulation.attempt_steps import AttemptSteps


def test_an_attempt_takes_all_steps_from_its_first_on() -> None:
    steps = AttemptSteps(2, 10)

    assert (steps.taken_count, steps.reached(8), steps.reached(1), steps.reached(0)) == (8, 2, 9, 10)
    assert not steps.is_thinned_at(9)


def test_attempt_thinned_from_start_leaves_out_its_steps() -> None:
    steps = AttemptSteps(0, 10, (6, 8))

    assert (steps.taken_count, steps.reached(2), steps.reached(1)) == (8, 6, 8)
    assert (steps.is_thinned_at(6), steps.is_thinned_at(8)) == (False, True)


@pytest.mark.parametrize(
    ("left", "asked", "heeded"),
    [(7, (6, 8), True), (4, (6, 8), True), (3, (6, 8), False), (7, (), False)],
)
def test_thin_applies_until_its_first_step_passed(left: int, asked: tuple[int, ...], heeded: bool) -> None:
    """Four left of ten: step 6 comes next. Three left: it was taken."""
    steps = AttemptSteps(0, 10)
    steps.thin(asked)

    assert steps.left_after(left) == (left - 2 if heeded else left)
    assert steps.thinned_steps == (asked if heeded else ())


def test_an_attempt_is_thinned_once() -> None:
    steps = AttemptSteps(0, 10)
    steps.thin((6, 8))
    left = steps.left_after(8)
    steps.thin((8,))

    assert (steps.left_after(left), steps.thinned_steps) == (6, (6, 8))


def test_late_thin_is_forgotten() -> None:
    steps = AttemptSteps(0, 10)
    steps.thin((6, 8))
    steps.left_after(3)

    assert (steps.left_after(2), steps.thinned_steps) == (2, ())
