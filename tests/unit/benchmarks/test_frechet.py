"""Test the Fréchet distance against the closed form of Gaussians with known axes."""

import numpy as np
import pytest

from benchmarks.frechet import FrechetReference, Moments, moments

SOURCE = np.random.default_rng(0)
REAL = SOURCE.normal(size=(4_000, 5)) * [4.0, 3.0, 2.0, 1.0, 0.01]


def test_frechet_distance_to_itself_is_zero() -> None:
    reference = FrechetReference(REAL, 4)

    assert reference.distance(moments(reference.project(REAL))) == pytest.approx(0.0, abs=1e-9)


def test_frechet_distance_of_shift_and_stretch_is_closed_form() -> None:
    reference = FrechetReference(REAL, 4)
    own = moments(reference.project(REAL))
    shifted = Moments(own.mean + np.array([0.0, 3.0, 0.0, 4.0]), own.covariance * 4.0)

    # twice as wide along each axis: the sum of the variances again
    assert reference.distance(shifted) == pytest.approx(25.0 + np.trace(own.covariance))


def test_moments_weight_equals_copies() -> None:
    weights = SOURCE.integers(0, 4, size=len(REAL)).astype(float)
    copied = moments(np.repeat(REAL, weights.astype(int), axis=0))
    weighted = moments(REAL, weights)

    assert weighted.mean == pytest.approx(copied.mean)
    assert weighted.covariance == pytest.approx(copied.covariance)
