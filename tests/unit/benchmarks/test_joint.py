"""Test `joint`'s figures of known runs."""

import pytest

from benchmarks.joint import CASES, OURS, RIVAL, UNINFORMED, Trace, carried, margin, play, search
from benchmarks.measured_quality import correlation_of, own_deviation


@pytest.mark.parametrize("most", [0, 1, 7, 40])
@pytest.mark.parametrize("guess", [0, 8, 59])
def test_search_tries_last_carried_load_and_next(most: int, guess: int) -> None:
    tried: list[int] = []

    def is_carried(number: int) -> bool:
        tried.append(number)
        return number <= most

    search(is_carried, guess)

    assert {most, most + 1} <= set(tried)
    assert len(set(tried)) <= 16


@pytest.mark.parametrize(
    ("violations", "quality", "expected"), [(0.05, 0.95, 0.0), (0.0, 0.975, 0.5), (0.1, 1.0, -1.0), (0.0, 0.945, -0.1)]
)
def test_margin_uses_nearer_bound(violations: float, quality: float, expected: float) -> None:
    assert margin(violations, quality) == pytest.approx(expected)


def test_carried_load_is_where_mean_meets_bound() -> None:
    """At 1 the mean quality is 0.96, at 2 it is 0.94: half of the way."""
    traces = [[[1.0, 0.0, 0.97], [2.0, 0.0, 0.94]], [[1.0, 0.0, 0.95], [2.0, 0.0, 0.94]]]

    assert carried(traces) == pytest.approx(1.5)
    # Its margin is -1, that of an idle fleet 1.
    assert carried([[[1.0, 0.0, 0.9]]]) == pytest.approx(0.5)
    assert carried([[[1.0, 0.0, 0.97]]]) == 1.0


def test_correlation_grows_with_auroc_from_zero() -> None:
    assert [correlation_of(auroc) for auroc in (0.5, 0.7, 0.84)] == pytest.approx([0.0, 0.422, 0.703], abs=0.01)


def test_own_deviation_excludes_spread() -> None:
    """A uniform spread of 0.6 has a standard deviation of 0.1732, so that 0.1 remains of 0.2."""
    assert own_deviation(0.6, 0.2) == pytest.approx(0.1)
    assert own_deviation(0.32, 0.05) == 0.0


def test_joint_with_useless_confidence_is_not_below_modm() -> None:
    """MoDM is late at these loads: joint answers all, at no less quality."""
    ours, modm = (play(system, Trace("steps", 1), 0.8, 20.0, CASES[UNINFORMED]) for system in (OURS, RIVAL))

    assert ours.violations <= modm.violations
    assert ours.quality >= modm.quality
