"""From thinned pictures to the thinnings that are allowed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiling import ThinnedSample, allowed, allows, mean_share

KEPT = ThinnedSample(0.30, 0.30)
BETTER = ThinnedSample(0.33, 0.30)
LOST = ThinnedSample(0.20, 0.30)

samples = st.lists(st.builds(ThinnedSample, st.floats(0, 1), st.floats(0, 1)), max_size=80)


@pytest.mark.parametrize("lost", [LOST, ThinnedSample(math.nan, 0.3)])
def test_one_lost_picture_of_sixty_is_too_many_for_two_of_the_rules(lost: ThinnedSample) -> None:
    assert allows([KEPT] * 59, 0.95, ThresholdRule.LOWER_BOUND)
    assert not allows([KEPT] * 58, 0.95, ThresholdRule.LOWER_BOUND)
    assert not allows([KEPT] * 59 + [lost], 0.95, ThresholdRule.LOWER_BOUND)
    assert not allows([KEPT] * 59 + [lost], 0.95, ThresholdRule.MINIMUM)


def test_the_mean_lets_better_pictures_pay_for_worse_ones() -> None:
    assert allows([BETTER] * 60 + [LOST] * 10, 0.95, ThresholdRule.MEAN)
    assert not allows([KEPT] * 30 + [LOST] * 30, 0.95, ThresholdRule.MEAN)
    assert not allows([KEPT] * 29, 0.95, ThresholdRule.MEAN)
    assert mean_share([BETTER, KEPT]) == pytest.approx(1.05)


def test_fewer_steps_behind_a_number_that_does_not_hold_are_luck() -> None:
    measured = {
        (0, 40): [KEPT] * 60,
        (0, 30): [LOST] * 60,
        (0, 20): [KEPT] * 60,
        (20, 20): [KEPT] * 60,
        (20, 10): [KEPT] * 60,
    }

    assert allowed(measured, 0.95, ThresholdRule.LOWER_BOUND) == {(0, 40), (20, 20), (20, 10)}


@given(
    measured=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 5)), samples, max_size=6),
    rule=st.sampled_from(ThresholdRule),
)
def test_what_is_allowed_holds_by_itself_and_so_does_all_that_takes_more_steps(
    measured: dict[tuple[int, int], list[ThinnedSample]], rule: ThresholdRule
) -> None:
    found = allowed(measured, 0.95, rule)

    assert all(allows(measured[one], 0.95, rule) for one in found)
    for first, taken in found:
        assert all((first, more) in found for begun, more in measured if begun == first and more > taken)
