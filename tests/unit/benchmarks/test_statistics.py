import pytest

from benchmarks.statistics import binomial_interval, ratio_interval, slope_with_interval


@pytest.mark.parametrize(
    ("events", "trials", "expected"),
    # scipy.stats.binomtest(events, trials).proportion_ci(0.95, "exact")
    [(0, 20, (0.0, 0.16843)), (3, 20, (0.03207, 0.37893)), (20, 20, (0.83157, 1.0)), (700, 3000, (0.21830, 0.24890))],
)
def test_binomial_interval_is_clopper_pearson(events: int, trials: int, expected: tuple[float, float]) -> None:
    assert binomial_interval(events, trials) == pytest.approx(expected, abs=2e-5)


def test_slope_with_interval_is_least_squares() -> None:
    points = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0), (4.0, 4.0)]

    # Standard error sqrt(0.12) by hand; Student's t at 97.5 % with 3 degrees of freedom is 3.1824.
    assert slope_with_interval(points) == pytest.approx((0.8, -0.3024, 1.9024), abs=1e-3)


def test_ratio_interval_contains_ratio_and_narrows_without_scatter() -> None:
    scattered = ratio_interval([1.0, 2.0, 3.0] * 20, [1.0, 1.0, 1.0], max)

    assert ratio_interval([6.0, 6.0], [3.0, 3.0, 3.0], max) == (2.0, 2.0)
    assert scattered[0] <= 3.0 <= scattered[1]
