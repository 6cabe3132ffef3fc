"""Test arrival processes, and the scaling and compressing of traces."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.workloads.times import (
    Segment,
    ascending,
    compressed,
    fitted_segments,
    poisson_times,
    rate_curve,
    scaled,
    segment_times,
)
from pentimento.domain.errors import InvalidArgument
from tests.support.refusals import wrong_refusals

SEEDS = st.integers(0, 2**32 - 1)
TRACES = st.lists(st.floats(0, 1e4, allow_nan=False), max_size=60).map(sorted)


def dispersion(times: np.ndarray, window_s: float, duration_s: float) -> float:
    """Variance of the counts in windows over their mean: 1 for a Poisson process."""
    counts, _ = np.histogram(times, bins=int(duration_s / window_s), range=(0, duration_s))
    return float(counts.var() / counts.mean())


def test_poisson_times_have_their_rate_and_spread() -> None:
    times = poisson_times(5.0, 4000.0, np.random.default_rng(1))

    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert dispersion(times, 10.0, 4000.0) == pytest.approx(1.0, abs=0.2)
    assert np.diff(times).std() == pytest.approx(0.2, rel=0.05)  # exponential gaps: as wide as their mean


@given(SEEDS, st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 20)), min_size=1, max_size=6))
def test_segment_times_ascend_within_segments(seed: int, parts: list[tuple[float, float]]) -> None:
    times = segment_times([Segment(*part) for part in parts], np.random.default_rng(seed))

    assert (np.diff(times) >= 0).all()
    assert (times >= 0).all() and (times <= sum(duration for duration, _ in parts) + 1e-9).all()


def test_segments_have_their_rates() -> None:
    times = segment_times([Segment(500, 1), Segment(500, 0), Segment(500, 8)], np.random.default_rng(3))

    counts, _ = np.histogram(times, bins=3, range=(0, 1500))
    assert counts[1] == 0
    assert counts[0] == pytest.approx(500, rel=0.15) and counts[2] == pytest.approx(4000, rel=0.06)


@given(TRACES, SEEDS)
def test_scale_of_one_keeps_the_trace(trace: list[float], seed: int) -> None:
    assert list(scaled(trace, 1.0, np.random.default_rng(seed))) == trace


@pytest.mark.parametrize("scale", [0.25, 3.5])
def test_scaling_keeps_the_shape_of_the_curve(scale: float) -> None:
    rng = np.random.default_rng(5)
    trace = segment_times([Segment(400, 2), Segment(400, 10), Segment(400, 5)], rng)

    made = scaled(trace, scale, rng)

    before, _ = np.histogram(trace, bins=6, range=(0, 1200))
    after, _ = np.histogram(made, bins=6, range=(0, 1200))
    assert after / scale == pytest.approx(before, rel=0.15)


@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_scaled_poisson_trace_is_poisson(scale: float) -> None:
    rng = np.random.default_rng(7)

    made = scaled(poisson_times(5.0, 6000.0, rng), scale, rng, jitter_s=20.0)

    assert dispersion(made, 1.0, 6000.0) == pytest.approx(1.0, abs=0.15)


@given(TRACES, st.floats(0.05, 5), SEEDS)
def test_scaled_times_stay_within_the_trace(trace: list[float], scale: float, seed: int) -> None:
    made = scaled(trace, scale, np.random.default_rng(seed))

    assert (np.diff(made) >= 0).all()
    assert len(trace) * int(scale) <= len(made) <= len(trace) * (int(scale) + 1)
    assert not len(made) or (made[0] >= trace[0] and made[-1] <= trace[-1])


def test_scaled_times_do_not_coincide_at_the_ends() -> None:
    rng = np.random.default_rng(9)

    made = scaled(poisson_times(5.0, 200.0, rng), 20.0, rng, jitter_s=10.0)

    assert len(np.unique(made)) == len(made)


def test_compressing_shortens_gaps_by_one_factor() -> None:
    assert list(compressed([10.0, 30.0, 110.0], 10.0)) == [0.0, 2.0, 10.0]


def test_rate_curve_counts_by_window() -> None:
    assert list(rate_curve([0, 1, 2, 10, 29], 10.0)) == [0.3, 0.1, 0.1]


def test_fitted_segments_span_the_rates() -> None:
    segments = fitted_segments([0, 1, 2, 3, 10, 20, 21], 10.0, 4.0, 32.0)

    assert [segment.rate for segment in segments] == pytest.approx([32.0, 4.0, 4.0 + 28.0 / 3.0])


def test_times_that_do_not_ascend_are_named() -> None:
    for times in ([1.0, 0.5], [-1.0], [math.nan], [0.0, math.inf]):
        place = rf"times_s\[{len(times) - 1}\]"
        with pytest.raises(InvalidArgument, match=f"{place}: must be finite, at least 0 and ascending"):
            ascending(times)


RNG = np.random.default_rng(0)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: poisson_times(1e9, 1.0, RNG), "rate: must be that of at most 100,000,000 requests in all"),
    (lambda: poisson_times(1e300, 1.0, RNG), "rate: must be that of at most 100,000,000 requests in all"),
    (lambda: poisson_times(-1.0, 1.0, RNG), "rate: must be at least 0"),
    (lambda: poisson_times(1.0, 0.0, RNG), "duration_s: must be above 0"),
    (lambda: scaled([0.0], 0.0, RNG), "scale: must be above 0"),
    (lambda: compressed([0.0], 0.0), "factor"),
    (lambda: fitted_segments([0.0], 1.0, 5.0, 4.0), "lowest"),
]


def test_wrong_argument_is_named() -> None:
    assert wrong_refusals(InvalidArgument, lambda make: make(), WRONG) == []
