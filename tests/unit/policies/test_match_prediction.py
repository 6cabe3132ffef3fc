"""Test the match predictor's gate: when it is on, its counts, bounds and memory."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.match_prediction import (
    LookupPrices,
    MatchGate,
    NetLatency,
    Ruling,
    SearchOutcome,
    calibrate,
    threshold_for_recall,
)

PRICES = LookupPrices(search_s=0.1, generation_s=10.0, prediction_s=0.001)
DOUBT = math.log(10.0)
# Costs equal to the savings, and larger ones.
EVEN, DEAR = LookupPrices(0.1, 10.0, 0.1), LookupPrices(0.1, 10.0, 0.2)


def misses(count: int, score: float = 0.0) -> list[SearchOutcome]:
    return [SearchOutcome(score, 0.0)] * count


def opened_gate() -> MatchGate:
    """Return a gate that skips scores below 1."""
    gate = MatchGate()
    gate.remember([*misses(1000), *[SearchOutcome(1.0, 0.1)] * 1000])
    gate.review(PRICES)
    assert gate.on
    return gate


def test_accounts_are_added_and_scaled_in_all_that_they_count() -> None:
    one = NetLatency(2.0, 3.0, 5.0, 7.0, 11.0)

    assert one.plus(NetLatency(10.0, 20.0, 30.0, 40.0, 50.0)) == NetLatency(12.0, 23.0, 35.0, 47.0, 61.0)
    assert one.scaled(2.0) == NetLatency(4.0, 6.0, 10.0, 14.0, 22.0)
    assert one.net_s == 5.0 - 7.0 - 11.0


def test_bound_of_misses_allows_for_unseen_hit() -> None:
    """Ten of eleven are skipped; the smallest hit so far saves 0.5. 7 * 0.5 * ln 10 / (3 * 9)."""
    found = calibrate([*misses(10), SearchOutcome(1.0, 0.5), SearchOutcome(1.0, 0.6)], PRICES)

    assert found is not None
    bound = 7 * 0.5 * DOUBT / 27
    assert found.threshold == 1.0
    assert found.expected_s == pytest.approx(10 / 12 * 0.1 - 0.001)
    assert found.at_least_s == pytest.approx(10 / 12 * (0.1 - bound * 10.0) - 0.001)


def test_bound_grows_with_variance_and_largest_outcome() -> None:
    """Eight misses and hits of 0.1 and 0.3: a mean of 0.04, a variance of 0.01 - 0.0016."""
    hits = [SearchOutcome(0.0, 0.1), SearchOutcome(0.0, 0.3)]

    found = calibrate([*misses(8), *hits, SearchOutcome(1.0, 0.5)], PRICES)

    assert found is not None
    bound = 0.04 + math.sqrt(2 * 0.0084 * DOUBT / 10) + 7 * 0.3 * DOUBT / 27
    assert found.expected_s == pytest.approx(10 / 11 * (0.1 - 0.4) - 0.001)
    assert found.at_least_s == pytest.approx(10 / 11 * (0.1 - bound * 10.0) - 0.001)


def test_outcomes_of_uneven_weights_are_fewer_than_they_seem() -> None:
    """Four times 1, and 4: (8 * 8) / 20 = 3.2 of one weight; a mean of 4 * 0.5 / 8, a variance of 0.0625."""
    outcomes = [*misses(4), SearchOutcome(0.0, 0.5, weight=4.0), SearchOutcome(1.0, 0.5, weight=2.0)]

    found = calibrate(outcomes, PRICES)

    assert found is not None
    bound = 0.25 + math.sqrt(2 * 0.0625 * DOUBT / 3.2) + 7 * 0.5 * DOUBT / (3 * 2.2)
    assert found.expected_s == pytest.approx(8 / 10 * (0.1 - 2.5) - 0.001)
    assert found.at_least_s == pytest.approx(8 / 10 * (0.1 - bound * 10.0) - 0.001)


def test_a_single_outcome_bounds_nothing() -> None:
    found = calibrate([*misses(1), *misses(1, 1.0)], PRICES)

    assert found is not None and found.at_least_s < -1e6


def test_lowest_of_equally_good_thresholds_is_taken() -> None:
    """Lookups cost nothing to search: skipping one gains nothing."""
    free = LookupPrices(0.0, 0.0, 0.0)

    found = calibrate([*misses(5), *misses(5, 1.0), *misses(5, 2.0)], free)

    assert found is not None and found.threshold == 1.0


@pytest.mark.parametrize(("recall", "threshold"), [(0.25, 0.8), (0.26, 0.4), (0.5, 0.4), (0.51, 0.2), (1.0, 0.2)])
def test_the_threshold_for_a_recall_counts_hits_by_weight(recall: float, threshold: float) -> None:
    outcomes = [
        SearchOutcome(0.2, 0.1, weight=2.0),
        SearchOutcome(0.4, 0.2),
        *misses(9, 0.6),
        SearchOutcome(0.8, 0.3),
    ]

    assert threshold_for_recall(outcomes, recall) == threshold


def test_without_hits_every_threshold_keeps_them_all() -> None:
    assert threshold_for_recall(misses(3), 0.9) == -math.inf


def test_score_at_threshold_is_searched_and_draw_at_share_is_skipped() -> None:
    gate = opened_gate()

    assert gate.calibration is not None and gate.calibration.threshold == 1.0
    assert [gate.rule(1.0, 0.0), gate.rule(0.999, 0.1), gate.rule(0.999, 0.0999)] == [
        Ruling.SEARCH,
        Ruling.SKIP,
        Ruling.AUDIT,
    ]


def test_one_that_is_off_books_nothing_and_learns_all_the_same() -> None:
    gate = MatchGate()

    gate.note_searched(Ruling.AUDIT, 0.3, 0.2, PRICES)
    gate.note_searched(Ruling.SEARCH, 0.4, 0.0, PRICES)

    assert gate.outcomes == (SearchOutcome(0.3, 0.2, 10.0), SearchOutcome(0.4, 0.0, 1.0))
    assert gate.total == NetLatency()


def test_every_kind_of_lookup_is_booked_with_cost_and_saving() -> None:
    gate = opened_gate()

    gate.note_skipped(PRICES)
    assert gate.total == NetLatency(1.0, 1.0, 0.1, 0.0, 0.001)
    gate.note_searched(Ruling.AUDIT, 0.3, 0.2, PRICES)
    assert gate.total == NetLatency(2.0, 1.0, 0.1, 9 * 0.2 * 10.0, 0.002)
    gate.note_searched(Ruling.SEARCH, 1.5, 0.5, PRICES)
    assert gate.total == NetLatency(3.0, 1.0, 0.1, 9 * 0.2 * 10.0, 0.003)


def test_gate_remembers_2048_outcomes() -> None:
    gate = MatchGate()

    gate.remember([*misses(1, 0.3), *misses(2047, 0.1), *misses(1, 0.2)])

    assert len(gate.outcomes) == 2048
    assert (gate.outcomes[0], gate.outcomes[-1]) == (SearchOutcome(0.1, 0.0), SearchOutcome(0.2, 0.0))


@pytest.mark.parametrize(
    ("lookup_count", "prices", "stays_on"), [(63, DEAR, True), (64, DEAR, False), (64, EVEN, False)]
)
def test_gate_switches_off_after_quarter_account_without_gain(
    lookup_count: int, prices: LookupPrices, stays_on: bool
) -> None:
    gate = opened_gate()
    for _ in range(lookup_count):
        gate.note_skipped(prices)

    gate.review(PRICES)

    assert gate.on is stays_on


def test_an_account_counts_for_less_the_older_it_is() -> None:
    """Whenever 2,048 are in it they are halved."""
    gate = opened_gate()
    counts = []
    for _ in range(3072):
        gate.note_skipped(PRICES)
        counts.append(gate._recent.lookup_count)

    assert (counts[2046], counts[2047], counts[3070], counts[3071]) == (2047.0, 1024.0, 2047.0, 1024.0)
    assert gate.total.lookup_count == 3072.0


def test_gate_switched_on_again_begins_new_account() -> None:
    gate = opened_gate()
    for _ in range(100):
        gate.note_skipped(DEAR)
    gate.review(PRICES)
    off = not gate.on
    gate.remember(misses(256))

    gate.review(PRICES)
    gate.review(PRICES)

    assert (off, gate.on, gate._recent) == (True, True, NetLatency())


def test_gate_switched_off_needs_full_count_of_new_outcomes() -> None:
    gate = opened_gate()
    gate.review(replace(PRICES, search_s=0.0))
    assert not gate.on

    on = []
    for count in (255, 1):
        gate.remember(misses(count))
        gate.review(PRICES)
        on.append(gate.on)

    assert on == [False, True]


def test_gate_with_recall_waits_for_needed_outcomes() -> None:
    gate = MatchGate(needed_count=4, recall=1.0)
    on = []
    for outcome in [*misses(3), SearchOutcome(0.7, 0.1)]:
        gate.remember([outcome])
        gate.review(PRICES)
        on.append(gate.on)

    assert on == [False, False, False, True]
    assert gate.calibration is not None and gate.calibration.threshold == 0.7
    assert math.isnan(gate.calibration.expected_s) and math.isnan(gate.calibration.at_least_s)


def test_gate_with_recall_books_skipped_lookups() -> None:
    gate = MatchGate(needed_count=1, recall=1.0)
    gate.remember([SearchOutcome(0.7, 0.1)])
    gate.review(PRICES)

    gate.note_skipped(PRICES)

    assert gate.total.skipped_count == gate._recent.skipped_count == 1.0


# The paper's prices: a search of 100 ms against an image of 10 s.
FAR = LookupPrices(search_s=0.1, generation_s=10.0, prediction_s=0.0002)
LOCAL = replace(FAR, search_s=0.001)


def separable(count: int, hits_above: float = 0.5, seed: int = 0) -> list[SearchOutcome]:
    """Return outcomes with scores evenly in 0..1; the ones above `hits_above` are hits that save a tenth of the
    steps."""
    random = Random(seed)
    scores = [random.random() for _ in range(count)]
    return [SearchOutcome(score, 0.1 if score > hits_above else 0.0) for score in scores]


def learnt_gate(prices: LookupPrices = FAR) -> MatchGate:
    gate = MatchGate()
    gate.remember(separable(1000))
    gate.review(prices)
    return gate


def test_gate_searches_until_scores_are_calibrated() -> None:
    gate = MatchGate()
    gate.remember(separable(255))
    gate.review(FAR)

    assert not gate.on
    assert gate.rule(-1e9, draw=0.99) is Ruling.SEARCH


def test_a_cheap_search_is_not_worth_the_risk() -> None:
    assert not learnt_gate(LOCAL).on


def test_the_time_of_predictions_counts() -> None:
    assert not learnt_gate(replace(FAR, prediction_s=0.06)).on


def test_scores_that_say_nothing_are_not_acted_upon() -> None:
    random = Random(1)
    gate = MatchGate()
    gate.remember(SearchOutcome(random.random(), random.choice([0.0, 0.1])) for _ in range(2000))
    gate.review(FAR)

    assert not gate.on


def test_threshold_weighs_lost_hits_against_saved_searches() -> None:
    """Hits in 0.2..0.4 cost ten searches each, so the threshold stays below them although misses follow."""
    outcomes = [
        SearchOutcome(number / 1000, 0.1 if 200 <= number < 400 or number >= 600 else 0.0) for number in range(1000)
    ]

    found = calibrate(outcomes, FAR)

    assert found is not None
    assert found.threshold == pytest.approx(0.2, abs=0.002)
    assert found.expected_s == pytest.approx(0.2 * 0.1 - 0.0002, rel=0.02)
    assert 0 < found.at_least_s < found.expected_s


def test_calibration_uses_relative_weights_of_outcomes() -> None:
    """All weights times 0.1 or 3 is the same evidence; equal weights are more evidence than unequal ones."""
    whole = separable(400)
    alike = [calibrate([replace(each, weight=weight) for each in whole], FAR) for weight in (1.0, 0.1, 3.0)]
    uneven = calibrate([replace(each, weight=(1.0, 9.0)[n % 2]) for n, each in enumerate(whole)], FAR)

    first = alike[0]
    assert first is not None and uneven is not None
    for found in alike:
        assert found is not None
        assert (found.threshold, found.expected_s, found.at_least_s) == pytest.approx(
            (first.threshold, first.expected_s, first.at_least_s)
        )
    assert uneven.expected_s - uneven.at_least_s > first.expected_s - first.at_least_s


def test_equal_scores_cannot_be_calibrated() -> None:
    assert calibrate([SearchOutcome(math.inf, 0.0)] * 500, FAR) is None


def test_forgone_hits_seen_by_audits_switch_it_off() -> None:
    gate = learnt_gate()

    for _ in range(90):
        gate.note_skipped(FAR)
    for _ in range(10):
        gate.note_searched(Ruling.AUDIT, 0.1, 0.5, FAR)
    gate.review(FAR)

    assert not gate.on
    assert gate.total.net_s < 0


def test_it_stays_on_between_its_two_bounds() -> None:
    """At this price the lower bound is below zero and the expected gain above it: on stays on, off stays off."""
    gate, fresh = learnt_gate(), MatchGate()
    fresh.remember(gate.outcomes)
    between = replace(FAR, search_s=0.005)

    gate.review(between)
    fresh.review(between)

    assert (gate.on, fresh.on) == (True, False)


@given(
    st.lists(
        st.tuples(st.floats(-1, 1), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([1.0, 10.0])),
        min_size=2,
        max_size=60,
    )
)
def test_lower_bound_is_never_above_expectation(rows: list[tuple[float, float, float]]) -> None:
    found = calibrate([SearchOutcome(*row) for row in rows], FAR)

    assert found is None or found.at_least_s <= found.expected_s
