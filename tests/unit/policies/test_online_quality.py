"""Thresholds that follow what hits kept: bounds, hysteresis, and what no samples may do."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.online_quality import AchievedQuality, QualitySample, ThresholdPosition
from pentimento.policies.online_quality import HIGHEST, achieved_quality, followed, share_bounds
from pentimento.profiles.rules import ThresholdRule

ALPHA = 0.9
GOOD, BAD = 0.95, 0.5
PROFILED = 0.8


def sample(number: int, quality: float, similarity: float = 0.9) -> QualitySample:
    return QualitySample(number, similarity, quality, 1.0)


def several(count: int, quality: float, similarity: float = 0.9, first: int = 1) -> list[QualitySample]:
    return [sample(first + each, quality, similarity) for each in range(count)]


def moved(samples: Sequence[QualitySample], position: ThresholdPosition, **asked: ThresholdRule) -> ThresholdPosition:
    return followed(samples, position, PROFILED, ALPHA, **asked)


def achieved(samples: Sequence[QualitySample], in_force: float = PROFILED, alpha: float = ALPHA) -> AchievedQuality:
    found = achieved_quality(samples, in_force, alpha)
    assert found is not None
    return found


samples_drawn = st.lists(
    st.tuples(st.floats(-1, 1), st.floats(-0.2, 1.2), st.floats(-0.1, 1)), min_size=1, max_size=90
).map(lambda drawn: [QualitySample(number, *values) for number, values in enumerate(drawn, 1)])
positions = st.builds(ThresholdPosition, st.just(-1.0) | st.floats(0.5, HIGHEST), st.integers(0, 90))


def test_a_promise_that_is_surely_broken_raises_the_threshold_to_where_it_is_not() -> None:
    far, near = several(20, BAD, 0.82), several(40, GOOD, 0.95, first=21)

    found = moved(far + near, ThresholdPosition(PROFILED))

    assert found == ThresholdPosition(0.95, 60)


def test_where_every_hit_fell_short_only_repeats_of_a_prompt_are_left() -> None:
    assert moved(several(30, BAD), ThresholdPosition(PROFILED)) == ThresholdPosition(HIGHEST, 30)


def test_a_threshold_that_cannot_rise_any_more_has_not_moved() -> None:
    """Samples count from the last move on: a promise that goes on being broken up there would never be kept again."""
    highest = ThresholdPosition(HIGHEST, 7)

    assert moved(several(30, BAD, HIGHEST), highest) == highest


def test_a_few_failures_raise_nothing() -> None:
    start = ThresholdPosition(PROFILED)
    assert moved(several(9, BAD), start) == start
    assert moved(several(10, BAD), start).similarity > PROFILED
    # 17 of 20: the upper bound of the share is 0.958.
    assert moved(several(17, GOOD) + several(3, BAD, first=18), start) == start
    # 16 of 20: 0.929.
    assert moved(several(16, GOOD) + several(4, BAD, first=17), start).similarity > PROFILED


def test_a_threshold_comes_down_by_half_of_its_way_once_the_promise_is_surely_kept() -> None:
    raised = ThresholdPosition(0.9, 0)

    assert moved(several(58, GOOD), raised) == raised
    assert moved(several(59, GOOD), raised) == ThresholdPosition(pytest.approx(0.85), 59)  # type: ignore[arg-type]


def test_a_table_with_a_higher_threshold_stands_over_a_position_below_it() -> None:
    assert moved(several(30, BAD, PROFILED), ThresholdPosition(0.5)).similarity == HIGHEST
    assert moved(several(59, GOOD), ThresholdPosition(0.5)) == ThresholdPosition(0.5)


def test_a_threshold_that_is_nearly_back_is_back() -> None:
    assert moved(several(59, GOOD), ThresholdPosition(0.809)) == ThresholdPosition(moved_at_number=59)


def test_no_sample_carries_two_moves_down() -> None:
    samples = several(70, GOOD, 0.95)
    once = moved(samples, ThresholdPosition(0.94))

    assert once.similarity < 0.94
    assert moved(samples, once) == once
    assert moved(samples + several(59, GOOD, 0.95, first=71), once).similarity < once.similarity


def test_old_failures_below_hold_a_threshold_up_until_they_are_forgotten() -> None:
    failures, since = several(30, BAD, 0.86), several(60, GOOD, 0.95, first=31)
    raised = ThresholdPosition(0.9, 30)

    assert moved(failures + since, raised) == raised
    assert moved(since, raised).similarity == pytest.approx(0.85)


def test_between_the_bounds_nothing_moves() -> None:
    """95 of 100: neither surely kept nor surely broken, wherever the threshold stands."""
    samples = several(95, GOOD, 0.95) + several(5, BAD, 0.95, first=96)

    for similarity in (PROFILED, 0.9, 0.95):
        assert moved(samples, ThresholdPosition(similarity)) == ThresholdPosition(similarity)


def test_a_table_of_means_is_judged_by_the_mean() -> None:
    """A third falls far short, and the mean is above alpha all the same."""
    samples = several(40, 1.1) + several(20, 0.6, first=41)
    start = ThresholdPosition(PROFILED)

    assert moved(samples, start, rule=ThresholdRule.MEAN) == start
    assert moved(samples, start).similarity == HIGHEST
    assert moved(several(60, 0.85), start, rule=ThresholdRule.MEAN).similarity == HIGHEST
    assert moved(several(60, 0.95), ThresholdPosition(0.9), rule=ThresholdRule.MEAN).similarity < 0.9
    # At alpha just so, the mean is neither above nor below.
    assert moved(several(60, ALPHA), start, rule=ThresholdRule.MEAN) == start


@given(samples_drawn, positions, st.sampled_from(ThresholdRule))
def test_a_threshold_stays_between_the_profiles_own_and_the_highest(
    samples: list[QualitySample], position: ThresholdPosition, rule: ThresholdRule
) -> None:
    found = followed(samples, position, PROFILED, ALPHA, rule)

    assert max(found.similarity, PROFILED) <= HIGHEST
    assert found == position or (found.similarity != position.similarity and found.moved_at_number == len(samples))


@given(samples_drawn, positions, st.sampled_from(ThresholdRule))
def test_the_same_samples_move_a_threshold_once(
    samples: list[QualitySample], position: ThresholdPosition, rule: ThresholdRule
) -> None:
    once = followed(samples, position, PROFILED, ALPHA, rule)
    if once != position:
        assert followed(samples, once, PROFILED, ALPHA, rule) == once


@given(samples_drawn, positions, st.permutations(range(5)))
def test_the_order_in_which_samples_are_given_changes_nothing(
    samples: list[QualitySample], position: ThresholdPosition, order: list[int]
) -> None:
    shuffled = sorted(samples, key=lambda one: order[one.number % 5])
    assert moved(shuffled, position) == moved(samples, position)


def test_a_kept_promise_is_seldom_taken_for_a_broken_one() -> None:
    """98 of 100 hits keep alpha; every one of 400 is judged as it comes. The bound is ours, of 200 such histories."""
    drawn = random.Random(7)
    raised = 0
    for _ in range(200):
        position, seen = ThresholdPosition(PROFILED), list[QualitySample]()
        for number in range(1, 401):
            seen.append(sample(number, GOOD if drawn.random() < 0.98 else BAD))
            if seen[-1].quality == BAD:  # only then can it be raised
                position = moved(seen, position)
        raised += position.similarity > PROFILED
    assert raised <= 10


@pytest.mark.parametrize(
    ("kept", "count", "low", "high"),
    # Clopper and Pearson's bounds: beta quantiles, by R's binom.test(conf.level = 0.90).
    [(59, 59, 0.9505, 1.0), (0, 10, 0.0, 0.2589), (8, 10, 0.4931, 0.9632), (95, 100, 0.8977, 0.9801)],
)
def test_bounds_of_a_share(kept: int, count: int, low: float, high: float) -> None:
    assert list(share_bounds(kept, count)) == pytest.approx([low, high], abs=1e-4)


def test_achieved_alpha_is_what_95_of_100_hits_kept() -> None:
    samples = [sample(number, 0.5 + number / 1000) for number in range(1, 101)]

    found = achieved(samples)

    assert found.sample_count == 100
    assert found.alpha == pytest.approx(0.506)
    # 99 of 100 surely are a share of 0.95, and 90 surely are not: R's pbinom gives 0.037 and, for 9 lost, 0.063.
    assert (found.alpha_low, found.alpha_high) == (pytest.approx(0.502), pytest.approx(0.510))
    assert achieved(samples, alpha=found.alpha).kept_share == pytest.approx(0.95)


def test_hits_below_the_threshold_in_force_say_nothing_of_it() -> None:
    samples = several(10, GOOD, 0.95) + several(10, BAD, 0.85, first=11)

    assert achieved(samples, 0.9).kept_share == 1.0
    assert achieved_quality(samples, 0.99, ALPHA) is None


def test_a_picture_of_no_quality_from_scratch_is_kept_or_not() -> None:
    kept, lost = QualitySample(1, 0.9, 0.0, -0.1), QualitySample(2, 0.9, -0.2, -0.1)
    assert achieved([kept]).alpha == 1.0
    assert achieved([lost]).alpha == 0.0


def test_next_to_no_quality_from_scratch_is_a_number_all_the_same() -> None:
    assert achieved([QualitySample(1, 0.9, 1.0, 1e-309)]).alpha_high < math.inf


@given(samples_drawn, st.floats(0.1, 1))
def test_intervals_hold_what_was_seen(samples: list[QualitySample], alpha: float) -> None:
    found = achieved(samples, -1.0, alpha)

    assert 0 <= found.kept_share_low <= found.kept_share <= found.kept_share_high <= 1
    assert 0 <= found.alpha_low <= found.alpha <= found.alpha_high < math.inf


def test_the_newest_hits_raise_a_threshold_that_old_ones_would_hold() -> None:
    """340 hits that kept it and 60 of which 12 did not are a share of 0.97; the 60 by themselves are not 0.95."""
    old, new = several(340, GOOD), several(48, GOOD, 0.95, first=341) + several(12, BAD, 0.82, first=389)

    assert achieved(old + new).kept_share == pytest.approx(0.97)
    assert moved(old + new, ThresholdPosition(PROFILED)).similarity == 0.95
    assert moved(new + several(340, GOOD, first=401), ThresholdPosition(PROFILED)) == ThresholdPosition(PROFILED)


def test_a_threshold_of_means_rises_to_where_the_mean_is_alpha_just_so() -> None:
    far, near = several(60, BAD, 0.82), several(20, ALPHA, 0.9, first=61)
    start = ThresholdPosition(PROFILED)

    assert moved(far + near, start, rule=ThresholdRule.MEAN) == ThresholdPosition(0.9, 80)
    less = several(20, ALPHA - 1e-9, 0.9, first=61)
    assert moved(far + less, start, rule=ThresholdRule.MEAN) == ThresholdPosition(HIGHEST, 80)


def test_a_threshold_rises_to_where_the_hits_keep_the_promise_as_they_are() -> None:
    """From 0.85 on 36 of 40 kept it: not surely less than 0.95, and yet less."""
    far, middle, near = several(20, BAD, 0.82), several(4, BAD, 0.85, first=21), several(36, GOOD, 0.9, first=25)

    assert moved(far + middle + near, ThresholdPosition(PROFILED)) == ThresholdPosition(0.9, 60)


def test_a_threshold_rises_to_where_just_the_required_share_keeps_the_promise() -> None:
    """19 of 20 from 0.9 on: 0.95."""
    far, near = several(40, BAD, 0.82), [*several(19, GOOD, 0.9, first=41), sample(60, BAD, 0.9)]

    assert moved(far + near, ThresholdPosition(PROFILED)) == ThresholdPosition(0.9, 60)


def test_where_the_least_similar_hits_fall_short_a_threshold_rises_past_them() -> None:
    """From 0.85 on 115 of 120 keep it, which is 0.958: the five that do not are the least similar ones."""
    far, middle, near = several(20, BAD, 0.82), several(5, BAD, 0.85, first=21), several(115, GOOD, 0.9, first=26)

    assert moved(far + middle + near, ThresholdPosition(PROFILED)) == ThresholdPosition(0.9, 140)


def test_one_that_was_raised_rises_again_past_the_least_similar_that_fall_short() -> None:
    samples = several(5, BAD, 0.91) + several(115, GOOD, 0.95, first=6)

    assert moved(samples, ThresholdPosition(0.9)) == ThresholdPosition(0.95, 120)
    # Where the profile has put it, all hits together keep the promise, and no more was promised.
    assert followed(samples, ThresholdPosition(), 0.9, ALPHA) == ThresholdPosition()


def test_four_hits_are_too_few_to_be_the_least_similar() -> None:
    samples = several(4, BAD, 0.91) + several(116, GOOD, 0.95, first=5)

    assert moved(samples, ThresholdPosition(0.9)) == ThresholdPosition(0.9)


def test_of_five_least_similar_hits_two_have_to_fall_short() -> None:
    """One failure in five is likely by a share of 0.95 (0.23), two are not (0.023): R's pbinom."""
    rest = several(115, GOOD, 0.95, first=10)
    one = [sample(1, BAD, 0.91), *several(4, GOOD, 0.92, first=2)]
    two = [*several(2, BAD, 0.91), *several(3, GOOD, 0.92, first=3)]

    assert moved(one + rest, ThresholdPosition(0.9)).similarity < 0.9
    assert moved(two + rest, ThresholdPosition(0.9)).similarity == 0.92


def test_hits_of_one_similarity_are_judged_together() -> None:
    """Two of forty that are alike fall short, which is 0.05: they are not two of the least similar five."""
    alike = several(2, BAD, 0.91) + several(38, GOOD, 0.91, first=3)

    assert moved(alike + several(80, GOOD, 0.95, first=41), ThresholdPosition(0.9)).similarity < 0.91


def test_a_threshold_does_not_come_down_to_where_the_least_similar_fell_short() -> None:
    """All from 0.85 on together keep the promise: 190 of 195."""
    failures, since = several(5, BAD, 0.86), several(190, GOOD, 0.95, first=6)

    assert moved(failures + since, ThresholdPosition(0.9, 5)) == ThresholdPosition(0.9, 5)


def test_what_is_older_than_the_newest_200_hits_holds_no_threshold_up() -> None:
    failures = several(30, BAD, 0.86)

    def after(count: int) -> float:
        return moved(failures + several(count, GOOD, 0.95, first=31), ThresholdPosition(0.9, 30)).similarity

    # Of five of the least similar it can be said, of four it cannot.
    assert after(195) == 0.9
    assert after(196) == pytest.approx(0.85)


def test_what_is_older_than_the_newest_200_hits_raises_nothing() -> None:
    def after(count: int) -> float:
        samples = several(5, BAD, 0.91) + several(count, GOOD, 0.95, first=6)
        return moved(samples, ThresholdPosition(0.9)).similarity

    assert after(195) == 0.95
    assert after(196) <= 0.9


def test_a_few_most_similar_hits_have_to_keep_the_promise_as_all_others_do() -> None:
    far, near = several(30, BAD, 0.82), [sample(31, BAD, 0.95), sample(32, GOOD, 0.97)]

    assert moved(far + near, ThresholdPosition(PROFILED)).similarity == 0.97


def test_of_a_table_of_means_near_hits_make_up_for_far_ones() -> None:
    samples = several(10, 0.88, 0.91) + several(115, 1.0, 0.95, first=11)

    assert moved(samples, ThresholdPosition(0.9), rule=ThresholdRule.MEAN).similarity < 0.9
