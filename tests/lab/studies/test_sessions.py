"""Test means over pairs by their sums against the pairs themselves."""

from itertools import combinations

import numpy as np
import pytest

from lab.studies.sessions import SimilaritySpread, session_similarity


def mean_of_pairs(vectors, pairs):
    values = [float(vectors[one].astype(np.float64) @ vectors[other]) for one, other in pairs]
    return np.mean(values) if values else None


@pytest.mark.parametrize("seed", range(2))
def test_spreads_are_those_of_all_pairs(make_vectors, seed):
    random = np.random.default_rng(seed)
    vectors, users = make_vectors(40, seed), [str(user) for user in random.integers(0, 4, 40)]
    at_s = np.sort(random.uniform(0, 5 * 3600, 40))

    found = session_similarity(vectors, users, at_s, 3600.0, other_users=100, seed=0)

    within, between, across = [], [], []
    for user in dict.fromkeys(users):
        rows = [row for row in range(40) if users[row] == user]
        session = {row: int((at_s[row] - at_s[rows[0]]) // 3600) for row in rows}
        pairs = list(combinations(rows, 2))
        within.append(mean_of_pairs(vectors, [pair for pair in pairs if session[pair[0]] == session[pair[1]]]))
        between.append(mean_of_pairs(vectors, [pair for pair in pairs if session[pair[0]] != session[pair[1]]]))
        # If there are at most as many users as are drawn, all others are drawn.
        across.append(mean_of_pairs(vectors, [(one, row) for one in rows for row in range(40) if users[row] != user]))
    for spread, expected in ((found.within, within), (found.between, between), (found.across, across)):
        known = [value for value in expected if value is not None]
        assert spread.user_count == len(known)
        assert spread.mean == pytest.approx(np.mean(known), abs=1e-6)
        assert spread.quantiles[2] == pytest.approx(np.median(known), abs=1e-6)


def test_one_user_with_one_prompt_has_no_pair():
    found = session_similarity(np.eye(1, dtype=np.float32), ["a"], np.zeros(1), 60.0, 100, 0)

    assert found.within == found.between == found.across == SimilaritySpread(0, None, None)


def test_drawn_others_never_include_the_user(make_vectors):
    vectors, users = np.eye(6, dtype=np.float32), [str(user) for user in range(6)]
    at_s = np.arange(6.0)

    found = session_similarity(vectors, users, at_s, 60.0, 2, seed=3)

    # Each user's one prompt is orthogonal to all others: a 1 would be the user's own.
    assert found.across.quantiles == (0.0,) * 5
