"""From thinned pictures to the thinnings that are allowed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.profiles.rules import ImageSample, ThresholdRule, mean_share, strictest, tally, without_luck

KEPT = ImageSample(0.30, 0.30)
BETTER = ImageSample(0.33, 0.30)
LOST = ImageSample(0.20, 0.30)

samples = st.lists(st.builds(ImageSample, st.floats(0, 1), st.floats(0, 1)), max_size=80)


@pytest.mark.parametrize("lost", [LOST, ImageSample(math.nan, 0.3)])
def test_one_lost_picture_of_sixty_is_too_many_for_two_of_the_rules(lost: ImageSample) -> None:
    assert tally([KEPT] * 59, 0.95).allows(ThresholdRule.LOWER_BOUND)
    assert not tally([KEPT] * 58, 0.95).allows(ThresholdRule.LOWER_BOUND)
    assert not tally([KEPT] * 59 + [lost], 0.95).allows(ThresholdRule.LOWER_BOUND)
    assert not tally([KEPT] * 59 + [lost], 0.95).allows(ThresholdRule.MINIMUM)


def test_the_mean_lets_better_pictures_pay_for_worse_ones() -> None:
    assert tally([BETTER] * 60 + [LOST] * 10, 0.95).allows(ThresholdRule.MEAN)
    assert not tally([KEPT] * 30 + [LOST] * 30, 0.95).allows(ThresholdRule.MEAN)
    assert not tally([KEPT] * 29, 0.95).allows(ThresholdRule.MEAN)
    assert mean_share([BETTER, KEPT]) == pytest.approx(1.05)


def test_of_pictures_without_any_quality_no_share_is_left() -> None:
    assert mean_share([ImageSample(0.2, 0.0)]) == 0.0


def test_fewer_steps_behind_a_number_that_does_not_hold_are_luck() -> None:
    holds = {(0, 40): True, (0, 30): False, (0, 20): True, (20, 20): True, (20, 10): True}

    assert without_luck(holds) == {(0, 40), (20, 20), (20, 10)}


@given(holds=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 5)), st.booleans()))
def test_what_is_allowed_holds_and_so_does_all_that_takes_more_steps(holds: dict[tuple[int, int], bool]) -> None:
    found = without_luck(holds)

    assert all(holds[one] for one in found)
    for first, taken in found:
        assert all((first, more) in found for begun, more in holds if begun == first and more > taken)


@given(samples=samples, rule=st.sampled_from(ThresholdRule))
def test_a_higher_alpha_never_allows_more(samples: list[ImageSample], rule: ThresholdRule) -> None:
    assert not tally(samples, 0.95).allows(rule) or tally(samples, 0.9).allows(rule)


def test_the_strictest_judge_of_each_picture_decides() -> None:
    kept, lost, gained = ImageSample(0.3, 0.3), ImageSample(0.1, 0.4), ImageSample(2.0, 1.0)

    assert strictest([[kept, lost]]) == [kept, lost]
    assert strictest([[kept, lost], [lost, gained]]) == [ImageSample(0.25, 1.0), ImageSample(0.25, 1.0)]
    assert strictest([[gained], [gained]]) == [ImageSample(2.0, 1.0)]


def test_what_was_worth_nothing_loses_nothing_and_nan_is_worth_nothing() -> None:
    nothing, unknown, full = ImageSample(0.0, 0.0), ImageSample(math.nan, 1.0), ImageSample(1.0, 1.0)

    assert strictest([[nothing, unknown], [full, full]]) == [full, ImageSample(0.0, 1.0)]


def test_judges_that_saw_other_pictures_judge_none() -> None:
    with pytest.raises(ValueError, match="shorter"):
        strictest([[ImageSample(0.3, 0.3)] * 2, [ImageSample(0.3, 0.3)]])


@pytest.mark.parametrize("rule", ThresholdRule)
def test_no_pictures_satisfy_no_rule(rule: ThresholdRule) -> None:
    assert not tally([], 0.9).allows(rule)
