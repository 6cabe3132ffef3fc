"""Test the nearest earlier prompts against all pairs."""

import tracemalloc
from itertools import product

import numpy as np
import pytest

from lab.studies.neighbours import NO_SIMILARITY, NOBODY, TIE, earlier_neighbours, nearest_of_misses

THRESHOLDS = (0.5, 0.8, 0.95, 1.0)


def brute_youngest(vectors, row, threshold):
    found = [one for one in range(row) if float(vectors[one] @ vectors[row]) >= threshold - TIE]
    return found[-1] if found else NOBODY


@pytest.mark.usefixtures("small_blocks")
def test_neighbours_equal_those_of_all_pairs(make_vectors):
    for count, seed in product((1, 2, 5, 37), range(6)):
        check_neighbours(make_vectors(count, seed))


def check_neighbours(vectors):
    found = earlier_neighbours(vectors, THRESHOLDS)

    for row in range(len(vectors)):
        cosines = [float(vectors[one] @ vectors[row]) for one in range(row)]
        best = max(cosines, default=NO_SIMILARITY)
        assert found.similarity[row] == pytest.approx(best, abs=1e-5)
        alike = [one for one, cosine in enumerate(cosines) if cosine >= best - 2 * TIE]
        assert found.donor[row] == (alike[-1] if alike else NOBODY)
        for index, threshold in enumerate(THRESHOLDS):
            assert found.youngest[index, row] == brute_youngest(vectors, row, threshold)


def test_distances_count_prompts_back_and_are_infinite_without_one():
    vectors = np.asarray([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32)

    found = earlier_neighbours(vectors, (0.9,))

    assert found.distances(0).tolist() == [np.inf, np.inf, 2.0, 1.0]


@pytest.mark.usefixtures("small_blocks")
def test_where_misses_alone_enter_the_nearest_is_among_them(make_vectors):
    for seed in range(6):
        vectors = make_vectors(37, seed)

        found = nearest_of_misses(vectors, 0.8)

        kept: list[int] = []
        for row in range(len(vectors)):
            best = max((float(vectors[one] @ vectors[row]) for one in kept), default=NO_SIMILARITY)
            assert found[row] == pytest.approx(best, abs=1e-5), seed
            if best < 0.8 - TIE:
                kept.append(row)


def test_memory_is_below_that_of_all_pairs(make_vectors):
    vectors = np.random.default_rng(0).normal(size=(8_000, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    all_pairs_bytes = 4 * len(vectors) ** 2
    tracemalloc.start()
    try:
        earlier_neighbours(vectors, THRESHOLDS)
        nearest_of_misses(vectors, 0.99)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < all_pairs_bytes / 4
