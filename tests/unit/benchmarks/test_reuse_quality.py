"""Test the arithmetic of reuse's quality with known figures."""

import numpy as np
import pytest

from benchmarks.reuse_quality import (
    Array,
    Distances,
    FeatureSpace,
    ScoredImages,
    attribute_pairs,
    frechet_distance,
)
from benchmarks.statistics import ratio_of_sums


def normal(count: int, *scales: float, mean: float = 0.0, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, len(scales))) * np.array(scales) + mean


def judged(right: list[list[int]], asked: list[list[int]]) -> ScoredImages:
    nothing = np.zeros(len(right))
    return ScoredImages(nothing, nothing, np.array(right, bool), np.array(asked, bool), nothing[:, None])


def test_feature_space_distance_to_itself_is_zero() -> None:
    vectors = normal(200, 1.0, 2.0, 3.0)

    assert frechet_distance(vectors, vectors) == pytest.approx(0.0, abs=1e-9)


def test_frechet_distance_of_normals_is_closed_form() -> None:
    """N(0, diag(1, 4)) and N(1, diag(9, 4)): 2 for the means, (1 - 3)² for the first scale."""
    ours, theirs = normal(200_000, 1.0, 2.0, seed=1), normal(200_000, 3.0, 2.0, mean=1.0, seed=2)

    assert frechet_distance(ours, theirs) == pytest.approx(2.0 + 4.0, rel=0.02)


def test_frechet_distance_handles_non_commuting_covariances() -> None:
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    plain = normal(100_000, 1.0, 3.0, seed=3)

    found = frechet_distance(plain @ turn.T, plain)

    own, other = turn @ np.diag([1.0, 9.0]) @ turn.T, np.diag([1.0, 9.0])
    mixed = np.sqrt(np.linalg.eigvals(own @ other).real).sum()
    assert found == pytest.approx(20.0 - 2.0 * mixed, rel=0.03)


def test_feature_space_keeps_largest_variance() -> None:
    features = normal(500, 0.01, 5.0, 0.01, 2.0)

    space = FeatureSpace.of(features, count=2)

    assert np.abs(space.directions[[0, 2]]).max() < 0.05
    moved = features + np.array([3.0, 0.0, 0.0, 0.0])
    assert space.distance(moved, features) < 0.1 < space.distance(features + np.array([0.0, 3.0, 0.0, 0.0]), features)


def test_attribute_pairs_count_requested_values() -> None:
    asked = [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    ours, vanilla = judged([[1, 1, 0], [0, 0, 0], [0, 0, 0]], asked), judged([[1, 0, 0], [1, 0, 0], [0, 0, 0]], asked)

    found = attribute_pairs(ours, vanilla, {"shape": [0, 1], "place": [2]})

    assert found == {"shape": [(2, 1), (0, 1)]}
    assert ratio_of_sums(found["shape"]) == 1.0


def test_distance_excess_is_beyond_seeds() -> None:
    assert Distances(ours=3.0, seeds=2.0, light=6.0).of_light == pytest.approx(0.25)
    assert Distances(ours=1.0, seeds=2.0, light=6.0).of_light == 0.0
    assert Distances(ours=1.0, seeds=2.0, light=6.0).of_seeds == 0.5
    assert Distances(ours=1.0, seeds=2.0, light=2.0).of_light is None
