"""Thresholds that follow the quality of hits: bounds, hysteresis, and no change without samples."""

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


def test_no_sample_carries_two_moves_down() -> None:
    samples = several(70, GOOD, 0.95)
    once = moved(samples, ThresholdPosition(0.94))

    assert once.similarity < 0.94
    assert moved(samples, once) == once
    assert moved(samples + several(59, GOOD, 0.95, first=71), once).similarity < once.similarity


def groups(*given: tuple[int, float, float]) -> list[QualitySample]:
    """Return samples, oldest first: of each group the count, the quality and the similarity."""
    drawn = [(similarity, quality) for count, quality, similarity in given for _ in range(count)]
    return [QualitySample(number, *one, 1.0) for number, one in enumerate(drawn, 1)]


# With 195 newer hits the five oldest of 200 are among the least similar; with 196 only four.
OLD_BELOW, OLD_AT = (5, BAD, 0.86), (5, BAD, 0.91)
# The hits, the threshold in force, and the similarity that it moves to; None: it stays.
Moves = dict[str, tuple[list[QualitySample], float, float | None]]
BY_SHARE: Moves = {
    "surely broken: to where it is not": (groups((20, BAD, 0.82), (40, GOOD, 0.95)), PROFILED, 0.95),
    "every hit fell short: repeats of a prompt alone": (groups((30, BAD, 0.9)), PROFILED, HIGHEST),
    # Samples count from the last move on: a threshold still broken there would never be kept again.
    "broken at the highest": (groups((30, BAD, HIGHEST)), HIGHEST, None),
    "nine failures": (groups((9, BAD, 0.9)), PROFILED, None),
    "ten failures": (groups((10, BAD, 0.9)), PROFILED, HIGHEST),
    "17 of 20: an upper bound of 0.958": (groups((17, GOOD, 0.9), (3, BAD, 0.9)), PROFILED, None),
    "16 of 20: 0.929": (groups((16, GOOD, 0.9), (4, BAD, 0.9)), PROFILED, HIGHEST),
    "58 kept it": (groups((58, GOOD, 0.9)), 0.9, None),
    "59 kept it: half of the way down": (groups((59, GOOD, 0.9)), 0.9, 0.85),
    "nearly back is back": (groups((59, GOOD, 0.9)), 0.809, -1.0),
    "a table above the position: broken": (groups((30, BAD, PROFILED)), 0.5, HIGHEST),
    "a table above the position: hits below it": (groups((30, BAD, 0.7)), 0.5, None),
    "a table above the position: kept": (groups((59, GOOD, 0.9)), 0.5, None),
    "old failures below": (groups((30, BAD, 0.86), (60, GOOD, 0.95)), 0.9, None),
    "95 of 100 at the profile's": (groups((95, GOOD, 0.95), (5, BAD, 0.95)), PROFILED, None),
    "95 of 100 between": (groups((95, GOOD, 0.95), (5, BAD, 0.95)), 0.9, None),
    "95 of 100 at their own": (groups((95, GOOD, 0.95), (5, BAD, 0.95)), 0.95, None),
    # From 0.85 on 36 of 40 kept it: not surely less than 0.95, and yet less.
    "to where the hits keep it as they are": (groups((20, BAD, 0.82), (4, BAD, 0.85), (36, GOOD, 0.9)), PROFILED, 0.9),
    "to where 19 of 20 keep it": (groups((40, BAD, 0.82), (19, GOOD, 0.9), (1, BAD, 0.9)), PROFILED, 0.9),
    # From 0.85 on 115 of 120 keep it, which is 0.958: the five that do not are the least similar ones.
    "past the least similar": (groups((20, BAD, 0.82), (5, BAD, 0.85), (115, GOOD, 0.9)), PROFILED, 0.9),
    "raised again past the least similar": (groups((5, BAD, 0.91), (115, GOOD, 0.95)), 0.9, 0.95),
    "four are too few to be the least similar": (groups((4, BAD, 0.91), (116, GOOD, 0.95)), 0.9, None),
    # One failure in five is likely by a share of 0.95 (0.23), two are not (0.023): R's pbinom.
    "one of the five least similar": (groups((1, BAD, 0.91), (4, GOOD, 0.92), (115, GOOD, 0.95)), 0.9, 0.85),
    "two of the five least similar": (groups((2, BAD, 0.91), (3, GOOD, 0.92), (115, GOOD, 0.95)), 0.9, 0.92),
    # Two of forty equally similar hits fall short, which is 0.05: they are not two of the least similar five.
    "hits of one similarity": (groups((2, BAD, 0.91), (38, GOOD, 0.91), (80, GOOD, 0.95)), 0.9, None),
    # All from 0.85 on together keep the promise: 190 of 195.
    "not down to where the least similar fell short": (groups((5, BAD, 0.86), (190, GOOD, 0.95)), 0.9, None),
    "five of the newest 200 below": (groups((25, BAD, 0.86), OLD_BELOW, (195, GOOD, 0.95)), 0.9, None),
    "four of the newest 200 below": (groups((25, BAD, 0.86), OLD_BELOW, (196, GOOD, 0.95)), 0.9, 0.85),
    "five of the newest 200": (groups(OLD_AT, (195, GOOD, 0.95)), 0.9, 0.95),
    "four of the newest 200": (groups(OLD_AT, (196, GOOD, 0.95)), 0.9, None),
    "a third far short": (groups((40, 1.1, 0.9), (20, 0.6, 0.9)), PROFILED, HIGHEST),
    "a few most similar": (groups((30, BAD, 0.82), (1, BAD, 0.95), (1, GOOD, 0.97)), PROFILED, 0.97),
}
BY_MEAN: Moves = {
    "a third far short, the mean above alpha": (groups((40, 1.1, 0.9), (20, 0.6, 0.9)), PROFILED, None),
    "surely below alpha": (groups((60, 0.85, 0.9)), PROFILED, HIGHEST),
    "surely above alpha": (groups((60, 0.95, 0.9)), 0.9, 0.85),
    "alpha just so": (groups((60, ALPHA, 0.9)), PROFILED, None),
    "to where the mean is alpha just so": (groups((60, BAD, 0.82), (20, ALPHA, 0.9)), PROFILED, 0.9),
    "a hair below alpha": (groups((60, BAD, 0.82), (20, ALPHA - 1e-9, 0.9)), PROFILED, HIGHEST),
    "near hits make up for far ones": (groups((10, 0.88, 0.91), (115, 1.0, 0.95)), 0.9, 0.85),
}


@pytest.mark.parametrize(("moves", "rule"), [(BY_SHARE, ThresholdRule.LOWER_BOUND), (BY_MEAN, ThresholdRule.MEAN)])
def test_threshold_follows_hits(moves: Moves, rule: ThresholdRule) -> None:
    for name, (samples, in_force, similarity) in moves.items():
        start = ThresholdPosition(in_force)
        expected = start if similarity is None else ThresholdPosition(pytest.approx(similarity), len(samples))  # type: ignore[arg-type]

        assert moved(samples, start, rule=rule) == expected, name


def test_threshold_of_profile_is_tested_by_all_hits() -> None:
    """A raised one rises past these five of the least similar."""
    samples = groups(OLD_AT, (115, GOOD, 0.95))

    assert followed(samples, ThresholdPosition(), 0.9, ALPHA) == ThresholdPosition()


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
    """98 of 100 hits keep alpha; each of 400 is evaluated as it comes. The bound is ours, of 200 such histories."""
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


def test_achieved_alpha_is_kept_by_95_of_100_hits() -> None:
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


def test_image_without_quality_from_scratch_is_kept_or_not() -> None:
    kept, lost = QualitySample(1, 0.9, 0.0, -0.1), QualitySample(2, 0.9, -0.2, -0.1)
    assert achieved([kept]).alpha == 1.0
    assert achieved([lost]).alpha == 0.0


def test_next_to_no_quality_from_scratch_is_a_number_all_the_same() -> None:
    assert achieved([QualitySample(1, 0.9, 1.0, 1e-309)]).alpha_high < math.inf


@given(samples_drawn, st.floats(0.1, 1))
def test_intervals_contain_observed_values(samples: list[QualitySample], alpha: float) -> None:
    found = achieved(samples, -1.0, alpha)

    assert 0 <= found.kept_share_low <= found.kept_share <= found.kept_share_high <= 1
    assert 0 <= found.alpha_low <= found.alpha <= found.alpha_high < math.inf


def test_the_newest_hits_raise_a_threshold_that_old_ones_would_hold() -> None:
    """340 hits kept it, and 12 of 60 did not: a share of 0.97; the 60 by themselves are below 0.95."""
    old, new = several(340, GOOD), several(48, GOOD, 0.95, first=341) + several(12, BAD, 0.82, first=389)

    assert achieved(old + new).kept_share == pytest.approx(0.97)
    assert moved(old + new, ThresholdPosition(PROFILED)).similarity == 0.95
    assert moved(new + several(340, GOOD, first=401), ThresholdPosition(PROFILED)) == ThresholdPosition(PROFILED)
