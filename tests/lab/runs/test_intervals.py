import math
import random
import statistics

import pytest

from lab.runs.intervals import (
    binomial_interval,
    bootstrap_interval,
    median_ratio,
    paired_ratio,
    paired_ratio_interval,
    percentile,
    ratio_interval,
    ratio_of_medians,
    ratio_of_sums,
    slope_with_interval,
)

PAIRS = [(1.0, 2.0), (3.0, 2.0), (8.0, 4.0)]


def test_statistics_of_pairs_are_known() -> None:
    found = [statistic(PAIRS) for statistic in (ratio_of_sums, ratio_of_medians, median_ratio, paired_ratio)]

    assert found == pytest.approx([12 / 8, 3 / 2, 1.5, 1.5 ** (1 / 3)])


def test_percentile_interpolates_between_samples() -> None:
    assert [percentile(at)([4.0, 1.0, 2.0, 3.0, 5.0]) for at in (0.0, 0.5, 0.9, 1.0)] == pytest.approx([1, 3, 4.6, 5])


CLOPPER_PEARSON = [
    (0, 20, (0.0, 0.16843)),
    (0, 50, (0.0, 1 - 0.025 ** (1 / 50))),
    (3, 20, (0.03207, 0.37893)),
    (20, 20, (0.83157, 1.0)),
    (700, 3000, (0.21830, 0.24890)),
]


def test_binomial_interval_is_clopper_pearson() -> None:
    """As scipy.stats.binomtest(events, trials).proportion_ci(0.95, "exact")."""
    for events, trials, expected in CLOPPER_PEARSON:
        assert binomial_interval(events, trials) == pytest.approx(expected, abs=2e-5), (events, trials)


def test_slope_with_interval_is_least_squares() -> None:
    points = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0), (4.0, 4.0)]

    # Standard error sqrt(0.12) by hand; Student's t at 97.5 % with 3 degrees of freedom is 3.1824.
    assert slope_with_interval(points) == pytest.approx((0.8, -0.3024, 1.9024), abs=1e-3)


def test_ratio_interval_contains_ratio_and_narrows_without_scatter() -> None:
    scattered = ratio_interval([1.0, 2.0, 3.0] * 20, [1.0, 1.0, 1.0], max)

    assert ratio_interval([6.0, 6.0], [3.0, 3.0, 3.0], max) == (2.0, 2.0)
    assert scattered[0] <= 3.0 <= scattered[1]


def test_bootstrap_is_reproducible_and_contains_statistic() -> None:
    samples = [float(value) for value in range(100)]

    low, high = bootstrap_interval(samples, statistics.median)

    assert (low, high) == bootstrap_interval(samples, statistics.median)
    assert low < statistics.median(samples) < high


@pytest.mark.parametrize(("count", "least_share"), [(5, 0.90), (7, 0.925), (20, 0.93)])
def test_bootstrap_of_few_samples_has_nominal_coverage(count: int, least_share: float) -> None:
    rng = random.Random(3)
    runs = [[rng.gauss(0.0, 1.0) for _ in range(count)] for _ in range(400)]

    intervals = [bootstrap_interval(run, statistics.fmean, resamples=500) for run in runs]

    assert sum(low <= 0.0 <= high for low, high in intervals) / len(runs) >= least_share


def test_paired_ratio_interval_uses_students_t() -> None:
    pairs = [(math.exp(log), 1.0) for log in (0.1, 0.2, 0.3)]

    low, high = paired_ratio_interval(pairs)

    assert paired_ratio(pairs) == pytest.approx(math.exp(0.2))
    assert (math.log(low), math.log(high)) == pytest.approx((0.2 - 4.303 * 0.1 / 3**0.5, 0.2 + 4.303 * 0.1 / 3**0.5))
