"""Test overloads over their rounds' peaks."""

import pytest

from benchmarks.overload import fairness_figure, goodput_figures

ROUND = [(0.8, 8.0), (0.9, 10.0), (1.0, 9.0), (2.0, 10.0), (5.0, 9.5)]
WORSE = [(0.8, 8.0), (0.9, 9.0), (1.0, 20.0), (2.0, 10.0), (5.0, 19.0)]


def test_goodput_is_relative_to_round_peak() -> None:
    twice, five_times = goodput_figures([ROUND, WORSE], [])

    assert twice.value == pytest.approx((1.0 * 0.5) ** 0.5)
    assert five_times.value == pytest.approx(0.95)
    assert five_times.interval is not None
    assert five_times.interval.low == pytest.approx(0.95)


def test_goodput_of_one_round_has_no_interval() -> None:
    assert [figure.interval for figure in goodput_figures([ROUND], [])] == [None, None]


def test_goodput_of_zero_peak_has_no_figure() -> None:
    nothing = [(share, 0.0) for share, _ in ROUND]

    assert [figure.value for figure in goodput_figures([ROUND, nothing], [])] == [None, None]


def test_fairness_is_worst_round() -> None:
    assert fairness_figure([0.99, 0.9, 0.97]).value == 0.9
    assert not fairness_figure([0.99, 0.9, 0.97]).ok
    assert fairness_figure([0.99, float("nan")]).value is None
