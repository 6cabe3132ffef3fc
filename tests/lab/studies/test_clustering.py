"""Test that our DBSCAN gives scikit-learn's clusters, numbers included, in bounded memory."""

import tracemalloc

import numpy as np
import pytest

from lab.studies.clustering import NOISE, dbscan


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("eps", [0.001, 0.05, 0.2, 0.5])
def test_clusters_are_those_of_scikit_learn(make_vectors, eps):
    reference = pytest.importorskip("sklearn.cluster").DBSCAN(eps=eps, min_samples=4, metric="cosine")
    for seed in range(8):
        vectors = make_vectors(60, seed, width=3)
        weights = np.random.default_rng(seed).integers(1, 4, len(vectors))
        reference.fit(vectors.astype(np.float64), sample_weight=weights)

        found = dbscan(vectors, weights, eps, 4)

        assert found.labels.tolist() == reference.labels_.tolist(), seed
        assert np.flatnonzero(found.is_core).tolist() == reference.core_sample_indices_.tolist(), seed


def angle(degrees: float) -> list[float]:
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]


def test_chain_of_core_points_is_one_cluster():
    vectors = np.asarray([angle(degrees) for degrees in (0, 4, 8, 12, 17, 90)], np.float32)
    weights = np.asarray([2, 1, 1, 2, 1, 2])

    found = dbscan(vectors, weights, eps=1 - np.cos(np.radians(5)), min_samples=3)

    assert found.labels.tolist() == [0, 0, 0, 0, 0, NOISE]
    assert found.is_core.tolist() == [True, True, True, True, True, False]
    assert found.count == 1
    assert found.sizes(weights).tolist() == [7]


def test_nothing_is_core_where_nothing_is_near():
    found = dbscan(np.eye(4, dtype=np.float32), np.ones(4, np.int64), 0.1, 2)

    assert (found.count, found.labels.tolist()) == (0, [NOISE] * 4)
    assert found.sizes(np.ones(4, np.int64)).tolist() == []


def test_memory_is_bounded_if_all_are_neighbours():
    vectors = np.tile(np.asarray([[0.6, 0.8]], np.float32), (6_000, 1))
    tracemalloc.start()
    try:
        assert dbscan(vectors, np.ones(len(vectors), np.int64), 0.1, 5).count == 1
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 8 * len(vectors) ** 2
