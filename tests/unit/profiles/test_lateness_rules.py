"""K from pictures whose LoRA came late: what each rule asks for, and Katz's own beside them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.profiles.rules import LateSample, ThresholdRule, late_tally, latest_alike_steps, latest_steps

GOOD = LateSample(cosine=0.999, strength=0.99, alike=0.999)
# Looks the same, and what the LoRA would have changed is lost.
WEAK = LateSample(cosine=0.995, strength=0.6, alike=0.999)
# Has all of the style, in another picture.
OTHER = LateSample(cosine=0.7, strength=1.0, alike=0.999)
UNLIKE = LateSample(cosine=0.999, strength=0.99, alike=0.9)

samples = st.lists(st.builds(LateSample, st.floats(-1, 1), st.floats(-1, 2), st.floats(-1, 1)), max_size=100)


@pytest.mark.parametrize("lost", [WEAK, OTHER, LateSample(math.nan, math.nan, 1.0)])
def test_one_lost_picture_of_sixty_is_too_many_for_two_of_the_rules(lost: LateSample) -> None:
    pictures = [GOOD] * 59 + [lost]

    assert not late_tally(pictures).allows(ThresholdRule.MINIMUM)
    assert not late_tally(pictures).allows(ThresholdRule.LOWER_BOUND)
    assert late_tally([GOOD] * 59).allows(ThresholdRule.LOWER_BOUND)
    assert not late_tally([GOOD] * 58).allows(ThresholdRule.LOWER_BOUND)


@pytest.mark.parametrize("rule", ThresholdRule)
def test_no_pictures_satisfy_no_rule(rule: ThresholdRule) -> None:
    assert not late_tally([]).allows(rule)


def test_a_single_picture_may_be_the_least_similar() -> None:
    assert late_tally([GOOD]).allows(ThresholdRule.MINIMUM)
    assert not late_tally([WEAK]).allows(ThresholdRule.MINIMUM)


@pytest.mark.parametrize("lost", [WEAK, OTHER])
def test_the_mean_bears_a_few_and_not_a_third(lost: LateSample) -> None:
    assert late_tally([GOOD] * 100 + [WEAK]).allows(ThresholdRule.MEAN)
    assert not late_tally([GOOD] * 60 + [lost] * 30).allows(ThresholdRule.MEAN)
    assert not late_tally([GOOD] * 29).allows(ThresholdRule.MEAN)


def test_a_later_bound_behind_one_that_does_not_hold_is_luck() -> None:
    measured = {10: [GOOD] * 60, 5: [WEAK] * 60, 2: [GOOD] * 60}

    assert [latest_steps(measured, rule) for rule in ThresholdRule] == [2, 2, 2]
    assert latest_steps({1: [WEAK] * 60}, ThresholdRule.MEAN) == 0


def test_katz_looks_at_the_latents_on_the_way() -> None:
    assert latest_alike_steps({1: [WEAK, OTHER], 2: [GOOD], 3: [GOOD, UNLIKE], 4: [GOOD]}) == 2
    assert latest_alike_steps({1: [UNLIKE]}) == 0


@given(measured=st.dictionaries(st.integers(1, 49), samples, max_size=4), rule=st.sampled_from(ThresholdRule))
def test_the_bound_is_a_number_of_steps_that_was_tried_and_holds(
    measured: dict[int, list[LateSample]], rule: ThresholdRule
) -> None:
    latest = latest_steps(measured, rule)

    assert latest == 0 or late_tally(measured[latest]).allows(rule)
    assert all(late_tally(measured[steps]).allows(rule) for steps in measured if steps <= latest)
