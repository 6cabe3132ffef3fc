import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.match_prediction import (
    LookupPrices,
    MatchGate,
    Ruling,
    SearchOutcome,
    calibrate,
    threshold_for_recall,
)

# The paper's: a search of 100 ms against a picture of 10 s.
FAR = LookupPrices(search_s=0.1, generation_s=10.0, prediction_s=0.0002)
LOCAL = replace(FAR, search_s=0.001)


def separable(count: int, hits_above: float = 0.5, seed: int = 0) -> list[SearchOutcome]:
    """Scores evenly in 0..1; those above `hits_above` are hits that save a tenth of the steps."""
    random = Random(seed)
    scores = [random.random() for _ in range(count)]
    return [SearchOutcome(score, 0.1 if score > hits_above else 0.0) for score in scores]


def opened_gate(prices: LookupPrices = FAR) -> MatchGate:
    gate = MatchGate()
    gate.remember(separable(1000))
    gate.review(prices)
    return gate


def test_a_gate_searches_until_it_has_learnt_what_scores_mean() -> None:
    gate = MatchGate()
    gate.remember(separable(255))
    gate.review(FAR)

    assert not gate.on
    assert gate.rule(-1e9, draw=0.99) is Ruling.SEARCH


def test_a_cheap_search_is_not_worth_the_risk() -> None:
    assert not opened_gate(LOCAL).on


def test_the_time_of_predictions_counts() -> None:
    assert not opened_gate(replace(FAR, prediction_s=0.06)).on


def test_scores_that_say_nothing_are_not_acted_upon() -> None:
    random = Random(1)
    gate = MatchGate()
    gate.remember(SearchOutcome(random.random(), random.choice([0.0, 0.1])) for _ in range(2000))
    gate.review(FAR)

    assert not gate.on


def test_the_threshold_weighs_what_is_forgone_against_what_is_saved() -> None:
    """Hits in 0.2..0.4 cost ten searches each, so the threshold stays below them although misses follow."""
    outcomes = [
        SearchOutcome(number / 1000, 0.1 if 200 <= number < 400 or number >= 600 else 0.0) for number in range(1000)
    ]

    found = calibrate(outcomes, FAR)

    assert found is not None
    assert found.threshold == pytest.approx(0.2, abs=0.002)
    assert found.expected_s == pytest.approx(0.2 * 0.1 - 0.0002, rel=0.02)
    assert 0 < found.at_least_s < found.expected_s


def test_what_counts_is_how_outcomes_weigh_against_one_another() -> None:
    """A tenth or three times of everything is the same evidence; outcomes of one weight are more of it than of two."""
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


def test_nothing_can_be_calibrated_on_scores_that_are_all_alike() -> None:
    assert calibrate([SearchOutcome(math.inf, 0.0)] * 500, FAR) is None


def test_forgone_hits_seen_by_audits_switch_it_off() -> None:
    gate = opened_gate()

    for _ in range(90):
        gate.note_skipped(FAR)
    for _ in range(10):
        gate.note_searched(Ruling.AUDIT, 0.1, 0.5, FAR)
    gate.review(FAR)

    assert not gate.on
    assert gate.total.net_s < 0


def test_it_stays_on_between_its_two_bounds() -> None:
    """At this price the lower bound is below zero and the expected gain above it: on stays on, off stays off."""
    gate, fresh = opened_gate(), MatchGate()
    fresh.remember(gate.outcomes)
    between = replace(FAR, search_s=0.005)

    gate.review(between)
    fresh.review(between)

    assert (gate.on, fresh.on) == (True, False)


@pytest.mark.parametrize("recall", [0.5, 0.95, 1.0])
def test_the_threshold_for_a_recall_reaches_it_and_no_lower_one_is_needed(recall: float) -> None:
    outcomes = [SearchOutcome(number / 200, 0.1 if number % 3 == 0 else 0.0) for number in range(200)]

    threshold = threshold_for_recall(outcomes, recall)

    hits = [outcome.score for outcome in outcomes if outcome.saved_share]
    assert sum(score >= threshold for score in hits) >= recall * len(hits)
    assert sum(score >= threshold + 0.005 for score in hits) < recall * len(hits)


@given(
    st.lists(
        st.tuples(st.floats(-1, 1), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([1.0, 10.0])),
        min_size=2,
        max_size=60,
    )
)
def test_a_lower_bound_is_never_above_what_is_expected(rows: list[tuple[float, float, float]]) -> None:
    found = calibrate([SearchOutcome(*row) for row in rows], FAR)

    assert found is None or found.at_least_s <= found.expected_s
