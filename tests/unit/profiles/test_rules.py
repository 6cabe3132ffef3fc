"""Permissions from samples: of reused starts, of skipped steps, and of LoRAs that came late."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.profiles.rules import (
    ImageSample,
    LateSample,
    RuleChoice,
    Tally,
    ThresholdRule,
    is_settled,
    late_is_settled,
    late_tally,
    latest_alike_steps,
    lowest,
    mean_is_surely,
    mean_share,
    share_is_surely,
    strictest,
    tally,
    without_luck,
)

ALPHA = 0.9
GOOD, BAD = 0.95, 0.5


def sample(similarity: float, quality: float) -> ImageSample:
    return ImageSample(quality, 1.0, similarity)


def good(count: int, similarity: float = 0.9) -> list[ImageSample]:
    """Return `count` samples that keep alpha, each a little more similar."""
    return [sample(similarity + number / 100_000, GOOD) for number in range(count)]


samples = st.lists(
    st.builds(ImageSample, st.floats(0, 1.2), st.floats(0, 1), st.floats(-1, 1)), min_size=1, max_size=120
)


MINIMUM, BOUND, MEAN = ThresholdRule.MINIMUM, ThresholdRule.LOWER_BOUND, ThresholdRule.MEAN
FAILURE = [sample(0.85, BAD)]
MADE_UP_FOR = [*(sample(0.9, 1.0) for _ in range(90)), *(sample(0.8, 0.85) for _ in range(10))]
BARELY = [sample(0.9, ALPHA + (0.02 if number % 2 else -0.0199)) for number in range(40)]
LOWEST: dict[str, tuple[list[ImageSample], float, ThresholdRule, float | None]] = {
    "above the most alike failure": (
        [sample(0.6, GOOD), sample(0.7, BAD), sample(0.8, GOOD), sample(0.9, GOOD)],
        *(ALPHA, MINIMUM, 0.8),
    ),
    "a failure of the same similarity": ([sample(0.8, GOOD), sample(0.8, BAD), sample(0.9, GOOD)], ALPHA, MINIMUM, 0.9),
    "just alpha": ([sample(0.8, ALPHA)], ALPHA, MINIMUM, 0.8),
    "all of the quality": ([sample(0.8, 1.0)], 1.0, MINIMUM, 0.8),
    "hardly any of the quality": ([sample(0.8, 1.0)], 0.001, MINIMUM, 0.8),
    # 0.95 ** 59 = 0.0485 and 0.95 ** 58 = 0.0510: below one in twenty from 59 on.
    "58 without a failure": (good(58), ALPHA, BOUND, None),
    "59 without a failure": (good(59), ALPHA, BOUND, 0.9),
    "one failure in 92": (good(91) + FAILURE, ALPHA, BOUND, 0.9),
    "one failure in 93": (good(92) + FAILURE, ALPHA, BOUND, 0.85),
    "failures that others make up for": (MADE_UP_FOR, ALPHA, MEAN, 0.8),
    "failures that others make up for, by minimum": (MADE_UP_FOR, ALPHA, MINIMUM, 0.9),
    "a mean that is barely above": (BARELY, ALPHA, MEAN, None),
    "29 samples of a mean": (good(29), ALPHA, MEAN, None),
    "30 samples of a mean": (good(30), ALPHA, MEAN, 0.9),
}


def test_lowest_similarity_by_rule() -> None:
    found = {name: lowest(measured, alpha, rule) for name, (measured, alpha, rule, _) in LOWEST.items()}

    assert found == {name: expected for name, (*_, expected) in LOWEST.items()}


@pytest.mark.parametrize(
    ("kept", "count", "surely"),
    [(121, 123, False), (122, 124, True), (149, 152, False), (150, 153, True), (0, 0, False), (0, 1, False)],
)
def test_shares_by_the_binomial_distribution(kept: int, count: int, surely: bool) -> None:
    # Wilks' sample sizes for 95 % at 95 %: 59, 93, 124, 153 where 0, 1, 2, 3 may fail.
    assert share_is_surely(kept, count, 0.95) is surely


@given(samples, st.sampled_from(ThresholdRule))
def test_no_threshold_lies_where_nothing_was_measured(measured: list[ImageSample], rule: ThresholdRule) -> None:
    found = lowest(measured, ALPHA, rule)
    assert found is None or found in {one.similarity for one in measured}


@given(samples)
def test_from_the_minimum_on_all_keep_alpha_and_just_below_one_does_not(measured: list[ImageSample]) -> None:
    found = lowest(measured, ALPHA, ThresholdRule.MINIMUM)
    above = [one for one in measured if found is not None and one.similarity >= found]
    below = [one.similarity for one in measured if found is None or one.similarity < found]
    assert all(one.keeps(ALPHA) for one in above)
    if below:
        assert not all(one.keeps(ALPHA) for one in measured if one.similarity == max(below))


@given(samples, st.sampled_from([ThresholdRule.MINIMUM, ThresholdRule.LOWER_BOUND]), st.floats(0.1, 0.9))
def test_threshold_never_falls_with_alpha(measured: list[ImageSample], rule: ThresholdRule, alpha: float) -> None:
    lenient, strict = (lowest(measured, level, rule) for level in (alpha, alpha + 0.1))
    if strict is not None:
        assert lenient is not None
        assert lenient <= strict


@given(samples, st.sampled_from(ThresholdRule))
def test_the_order_of_the_samples_does_not_matter(measured: list[ImageSample], rule: ThresholdRule) -> None:
    turned = list(reversed(measured))
    assert lowest(turned, ALPHA, rule) == lowest(measured, ALPHA, rule)


@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.05, 0.99))
def test_one_more_success_never_lowers_the_bound(kept: int, failures: int, required: float) -> None:
    if share_is_surely(kept, kept + failures, required):
        assert share_is_surely(kept + 1, kept + failures + 1, required)


@pytest.mark.parametrize(
    ("count", "mean", "surely"),
    # The values are one above and one below the mean: 1.64485 / sqrt(n - 1).
    [(100, 0.1654, True), (100, 0.1652, False), (30, 0.3055, True), (30, 0.3054, False), (28, 9.0, False)],
)
def test_the_bound_of_a_mean_is_by_the_normal_distribution(count: int, mean: float, surely: bool) -> None:
    margins = [mean + 1.0, mean - 1.0] * (count // 2)
    measured = [sample(0.9, ALPHA + margin) for margin in margins]

    assert mean_is_surely(margins) is surely
    assert (lowest(measured, ALPHA, ThresholdRule.MEAN) == 0.9) is surely


def test_a_mean_of_nothing_at_all_is_not_below_nothing_and_not_above_it() -> None:
    assert mean_is_surely([0.0] * 30)
    assert not mean_is_surely([0.0] * 30, strictly=True)
    assert mean_is_surely([1e-9] * 30, strictly=True)
    assert not mean_is_surely([0.0] * 29)


@pytest.mark.parametrize("required", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_all_or_nothing_is_never_sure(required: float) -> None:
    with pytest.raises(ValueError, match=f"required_share must lie between 0 and 1, got {required}"):
        share_is_surely(1, 1, required)


def test_a_deployment_reads_its_profiles_by_one_rule_or_by_their_own() -> None:
    assert [choice.rule for choice in RuleChoice] == [None, *ThresholdRule]
    assert [choice.value for choice in RuleChoice] == ["profile", "minimum", "lower_bound", "mean"]


KEPT = ImageSample(0.30, 0.30)
BETTER = ImageSample(0.33, 0.30)
LOST = ImageSample(0.20, 0.30)

thinned_samples = st.lists(st.builds(ImageSample, st.floats(0, 1), st.floats(0, 1)), max_size=80)


def test_mean_rule_averages_better_and_worse_images() -> None:
    assert tally([BETTER] * 60 + [LOST] * 10, 0.95).allows(ThresholdRule.MEAN)
    assert not tally([KEPT] * 30 + [LOST] * 30, 0.95).allows(ThresholdRule.MEAN)
    assert not tally([KEPT] * 29, 0.95).allows(ThresholdRule.MEAN)
    assert mean_share([BETTER, KEPT]) == pytest.approx(1.05)


def test_mean_share_of_zero_quality_is_zero() -> None:
    assert mean_share([ImageSample(0.2, 0.0)]) == 0.0


def test_fewer_steps_behind_a_number_that_does_not_hold_are_luck() -> None:
    holds = {(0, 40): True, (0, 30): False, (0, 20): True, (20, 20): True, (20, 10): True}

    assert without_luck(holds) == {(0, 40), (20, 20), (20, 10)}


@given(holds=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(1, 5)), st.booleans()))
def test_allowed_steps_hold_with_all_larger_ones(holds: dict[tuple[int, int], bool]) -> None:
    found = without_luck(holds)

    assert all(holds[one] for one in found)
    for first, taken in found:
        assert all((first, more) in found for begun, more in holds if begun == first and more > taken)


@given(samples=thinned_samples, rule=st.sampled_from(ThresholdRule))
def test_a_higher_alpha_never_allows_more(samples: list[ImageSample], rule: ThresholdRule) -> None:
    assert not tally(samples, 0.95).allows(rule) or tally(samples, 0.9).allows(rule)


def test_strictest_score_of_each_image_decides() -> None:
    kept, lost, gained = ImageSample(0.3, 0.3), ImageSample(0.1, 0.4), ImageSample(2.0, 1.0)

    assert strictest([[kept, lost]]) == [kept, lost]
    assert strictest([[kept, lost], [lost, gained]]) == [ImageSample(0.25, 1.0), ImageSample(0.25, 1.0)]
    assert strictest([[gained], [gained]]) == [ImageSample(2.0, 1.0)]


def test_zero_or_nan_quality_loses_nothing() -> None:
    nothing, unknown, full = ImageSample(0.0, 0.0), ImageSample(math.nan, 1.0), ImageSample(1.0, 1.0)

    assert strictest([[nothing, unknown], [full, full]]) == [full, ImageSample(0.0, 1.0)]


def test_scores_of_other_images_are_rejected() -> None:
    with pytest.raises(ValueError, match="shorter"):
        strictest([[ImageSample(0.3, 0.3)] * 2, [ImageSample(0.3, 0.3)]])


ON_TIME = LateSample(cosine=0.999, strength=0.99, alike=0.999)
# Looks the same, but the effect of the LoRA is lost.
WEAK = LateSample(cosine=0.995, strength=0.6, alike=0.999)
# Has all of the style, in another image.
OTHER = LateSample(cosine=0.7, strength=1.0, alike=0.999)
UNLIKE = LateSample(cosine=0.999, strength=0.99, alike=0.9)

late_samples = st.lists(st.builds(LateSample, st.floats(-1, 1), st.floats(-1, 2), st.floats(-1, 1)), max_size=100)


def test_minimum_rule_accepts_single_image() -> None:
    assert late_tally([ON_TIME]).allows(ThresholdRule.MINIMUM)
    assert not late_tally([WEAK]).allows(ThresholdRule.MINIMUM)


@pytest.mark.parametrize("lost", [WEAK, OTHER])
def test_the_mean_bears_a_few_and_not_a_third(lost: LateSample) -> None:
    assert late_tally([ON_TIME] * 100 + [WEAK]).allows(ThresholdRule.MEAN)
    assert not late_tally([ON_TIME] * 60 + [lost] * 30).allows(ThresholdRule.MEAN)
    assert not late_tally([ON_TIME] * 29).allows(ThresholdRule.MEAN)


@pytest.mark.parametrize(
    ("samples", "rule", "settled"),
    [
        ([ON_TIME] * 100, ThresholdRule.MINIMUM, False),
        ([ON_TIME] * 3 + [WEAK], ThresholdRule.MINIMUM, True),
        # Of 128 images two may be lost.
        ([WEAK] * 2, ThresholdRule.LOWER_BOUND, False),
        ([WEAK] * 3, ThresholdRule.LOWER_BOUND, True),
        ([WEAK] * 14, ThresholdRule.MEAN, False),
        ([WEAK] * 15, ThresholdRule.MEAN, True),
        ([OTHER] * 15, ThresholdRule.MEAN, True),
        ([ON_TIME] * 29, ThresholdRule.MEAN, False),
        ([ON_TIME] * 30, ThresholdRule.MEAN, True),
        # The mean strength lies 1.3 errors above the limit, then 2.5 and 4.6; then 0.3 above and 0.1 below it.
        ([ON_TIME] * 60 + [WEAK] * 4, ThresholdRule.MEAN, False),
        ([ON_TIME] * 82 + [WEAK] * 4, ThresholdRule.MEAN, False),
        ([ON_TIME] * 120 + [WEAK] * 4, ThresholdRule.MEAN, True),
        ([ON_TIME] * 50 + [WEAK] * 5, ThresholdRule.MEAN, False),
        ([ON_TIME] * 50 + [WEAK] * 6, ThresholdRule.MEAN, True),
    ],
)
def test_late_samples_settle_verdict_of_rule(samples: list[LateSample], rule: ThresholdRule, settled: bool) -> None:
    assert late_is_settled(samples, 128, rule) is settled


def test_settled_verdict_of_mean_is_one_of_its_samples() -> None:
    for lost in range(40):
        samples = [ON_TIME] * 60 + [WEAK] * lost
        if late_is_settled(samples, 128, ThresholdRule.MEAN):
            assert late_tally(samples).allows(ThresholdRule.MEAN) is (lost < 5)


@pytest.mark.parametrize(("errors", "permissions"), [(0.0, (102, 112)), (3.0, (1771, 1813)), (4.0, (1963, 1976))])
def test_settled_verdicts_by_mean_differ_rarely(errors: float, permissions: tuple[int, int]) -> None:
    # The mean strength is `errors` standard errors above LEAST_STRENGTH: at 0 each permission is wrong.
    draws = np.random.default_rng(7).normal(0.95 + errors * 0.05 / 8, 0.05, (2_000, 64))
    early = late = 0
    for row in draws:
        samples = [LateSample(1.0, float(strength), 1.0) for strength in row]
        ends = (count for count in range(16, 64, 16) if late_is_settled(samples[:count], 64, ThresholdRule.MEAN))
        early += late_tally(samples[: next(ends, 64)]).allows(ThresholdRule.MEAN)
        late += late_tally(samples).allows(ThresholdRule.MEAN)

    assert (early, late) == permissions


def test_latest_alike_steps_ends_at_unlike_latents() -> None:
    assert latest_alike_steps({1: [0.999, 0.999], 2: [1.0], 3: [1.0, 0.9], 4: [1.0]}) == 2
    assert latest_alike_steps({1: [0.9]}) == 0


@pytest.mark.parametrize(
    ("kept", "count", "planned", "settled"),
    [
        # Four failures of 200 are allowed, five are not.
        (195, 199, 200, False),
        (0, 4, 200, False),
        (0, 5, 200, True),
        (76, 76, 200, False),
        (77, 77, 200, True),
        # None of 59 samples may fail, and the last test leaves little error to the earlier ones.
        (57, 58, 59, True),
        (58, 58, 59, False),
    ],
)
def test_is_settled_once_more_samples_change_nothing(kept: int, count: int, planned: int, settled: bool) -> None:
    assert is_settled(kept, count, planned) is settled


@pytest.mark.parametrize("planned", [40, 59, 100, 128, 181, 200, 234])
def test_early_permissions_err_once_in_twenty_altogether(planned: int) -> None:
    # The share that keeps the quality is just REQUIRED_SHARE: every permission is an error.
    waiting, allowed = {0: 1.0}, 0.0
    for count in range(1, planned + 1):
        after: dict[int, float] = {}
        for failures, probability in waiting.items():
            after[failures] = after.get(failures, 0.0) + probability * 0.95
            after[failures + 1] = after.get(failures + 1, 0.0) + probability * 0.05
        ends = {failures for failures in after if count == planned or is_settled(count - failures, count, planned)}
        allowed += sum(after[one] for one in ends if share_is_surely(count - one, count, 0.95))
        waiting = {failures: after[failures] for failures in after.keys() - ends}

    assert allowed <= 0.05


@pytest.mark.parametrize(
    "found",
    [
        *(tally([KEPT] * 59 + [lost], 0.95) for lost in (LOST, ImageSample(math.nan, 0.3))),
        *(late_tally([ON_TIME] * 59 + [lost]) for lost in (WEAK, OTHER, LateSample(math.nan, math.nan, 1.0))),
    ],
)
def test_one_lost_image_of_sixty_fails_two_rules(found: Tally) -> None:
    assert (found.count, found.kept) == (60, 59)
    assert [rule for rule in ThresholdRule if found.allows(rule)] in ([], [ThresholdRule.MEAN])


@pytest.mark.parametrize("rule", ThresholdRule)
def test_no_images_satisfy_no_rule(rule: ThresholdRule) -> None:
    assert not tally([], 0.9).allows(rule)
    assert not late_tally([]).allows(rule)
