"""Test routers' estimates against the same computed prompt by prompt."""

import numpy as np
import pytest

from benchmarks.routing_estimates import aurocs, deferred_weights, figure_of, resampling_weights, served_values

CONFIDENCE = np.array([0.1, 0.9, 0.5, 0.5, 0.3, 0.9])
GOOD = np.array([False, True, True, False, False, False])


def pairs_won(confidence: np.ndarray, good: np.ndarray, counts: np.ndarray) -> float:
    rows = np.repeat(np.arange(len(good)), counts.astype(int))
    wins = [
        0.5 * (confidence[one] == confidence[other]) + (confidence[one] > confidence[other])
        for one in rows[good[rows]]
        for other in rows[~good[rows]]
    ]
    return float(np.mean(wins))


def test_aurocs_equal_pair_shares_by_resample() -> None:
    weights = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 1, 0, 2], [0, 3, 0, 1, 2, 0]], dtype=float)

    found = aurocs(CONFIDENCE, GOOD, weights)

    assert found.tolist() == pytest.approx([pairs_won(CONFIDENCE, GOOD, row) for row in weights])


def test_served_values_defer_least_confident_share() -> None:
    light, heavy = np.arange(6.0), np.arange(6.0) + 10.0
    weights = np.array([[1, 1, 1, 1, 1, 1], [0, 2, 0, 0, 2, 2]], dtype=float)

    found = served_values(CONFIDENCE, light, heavy, 0.5, weights)

    # Rows 0, 4 and 2 have the least confidence; the resample has both draws of row 4, and one of row 1.
    assert found.tolist() == pytest.approx([(10 + 1 + 12 + 3 + 14 + 5) / 6, (14 * 2 + 11 + 1 + 5 * 2) / 6])


@pytest.mark.parametrize(("rate", "deferred"), [(0.0, [0, 0, 0]), (0.5, [1, 1, 0]), (1.0, [1, 2, 1])])
def test_deferral_rate_counts_draws(rate: float, deferred: list[float]) -> None:
    assert deferred_weights(np.array([[1.0, 2.0, 1.0]]), rate).tolist() == [deferred]


def test_resampling_weights_start_with_each_prompt_once() -> None:
    weights = resampling_weights(50, 20)

    assert weights.shape == (21, 50)
    assert weights[0].tolist() == [1.0] * 50
    assert set(weights.sum(axis=1)) == {50.0}
    assert (resampling_weights(50, 20) == weights).all()


def test_figure_uses_all_prompts_and_interval_resamples() -> None:
    value, interval = figure_of(np.array([7.0, *np.linspace(0.0, 1.0, 1001)]))

    assert value == 7.0
    assert (interval.low, interval.high) == pytest.approx((0.025, 0.975))
