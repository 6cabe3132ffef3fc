import pytest

from benchmarks.statistics import binomial_interval


@pytest.mark.parametrize(
    ("events", "trials", "expected"),
    # Of scipy.stats.binomtest(events, trials).proportion_ci(0.95, "exact").
    [(0, 20, (0.0, 0.16843)), (3, 20, (0.03207, 0.37893)), (20, 20, (0.83157, 1.0)), (700, 3000, (0.21830, 0.24890))],
)
def test_the_interval_of_a_share_is_clopper_and_pearsons(
    events: int, trials: int, expected: tuple[float, float]
) -> None:
    assert binomial_interval(events, trials) == pytest.approx(expected, abs=2e-5)
