"""Test hit rates and savings against caches that are filled and searched."""

from collections import deque
from itertools import product

import numpy as np
import pytest

from lab.studies.neighbours import TIE
from lab.studies.reuse import NIRVANA_SAVINGS, LogReuse, SavingsRule, ceiling, parse_table, saved_by
from lab.studies.sessions import rows_by_user
from pentimento.domain.errors import InvalidArgument
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS
from tests.support.refusals import wrong_refusals

TABLE = (SavingsRule(0.6, 0.1), SavingsRule(0.8, 0.3), SavingsRule(0.95, 0.5))


def best_share(vectors, row, among):
    best = max((float(vectors[one] @ vectors[row]) for one in among), default=-2.0)
    return max((rule.saved_share for rule in TABLE if best >= rule.min_similarity - TIE), default=0.0), best


@pytest.mark.parametrize("warm_up", [0, 7])
def test_sizes_equal_a_simulated_fifo_cache(make_vectors, warm_up):
    for entries, seed in product((1, 3, 10), range(4)):
        vectors = make_vectors(50, seed)
        cache: deque[int] = deque(maxlen=entries)
        saved, hits = [], [0, 0, 0]
        for row in range(50):
            share, best = best_share(vectors, row, cache)
            if row >= warm_up:
                saved.append(share)
                hits = [count + (best >= rule.min_similarity - TIE) for count, rule in zip(hits, TABLE, strict=True)]
            cache.append(row)

        (point, _) = LogReuse.of(vectors, TABLE, warm_up).sizes([entries])

        assert point.saved_share == pytest.approx(np.mean(saved)), (entries, seed)
        assert point.hit_rates == pytest.approx([count / (50 - warm_up) for count in hits]), (entries, seed)


@pytest.mark.parametrize(("warm_up", "seed"), [(0, 0), (7, 1)])
def test_ceilings_are_those_of_caches_without_bounds(make_vectors, warm_up, seed):
    vectors = make_vectors(50, seed)
    users = [str(user) for user in np.random.default_rng(seed).integers(0, 3, 50)]
    all_saved, missed_saved, own_saved = [], [], []
    misses: list[int] = []
    for row in range(50):
        all_saved.append(best_share(vectors, row, range(row))[0])
        own_saved.append(best_share(vectors, row, [one for one in range(row) if users[one] == users[row]])[0])
        missed_saved.append(best_share(vectors, row, misses)[0])
        if missed_saved[-1] == 0:
            misses.append(row)

    found = ceiling(vectors, LogReuse.of(vectors, TABLE, warm_up), list(rows_by_user(users).values()))

    assert found.saved_share == pytest.approx(np.mean(all_saved[warm_up:]))
    assert found.saved_share_misses_only == pytest.approx(np.mean(missed_saved[warm_up:]))
    assert found.saved_share_own == pytest.approx(np.mean(own_saved[warm_up:]))
    assert found.hit_rate == pytest.approx(np.mean(np.asarray(all_saved[warm_up:]) > 0))
    assert found.hit_rate_misses_only == pytest.approx(np.mean(np.asarray(missed_saved[warm_up:]) > 0))
    assert found.hit_rate_own == pytest.approx(np.mean(np.asarray(own_saved[warm_up:]) > 0))


def test_log_without_users_has_no_own_hits():
    vectors = np.eye(2, dtype=np.float32)

    found = ceiling(vectors, LogReuse.of(vectors, TABLE), None)

    assert found.saved_share_own is None
    assert found.hit_rate_own is None


def test_ages_are_of_youngest_and_nearest_donors():
    cat, kitten = [1.0, 0.0], [0.9, np.sqrt(1 - 0.81)]
    vectors = np.asarray([cat, kitten, cat], np.float32)
    reuse = LogReuse.of(vectors, TABLE)

    at_most_10_s, at_most_100_s = reuse.ages([10.0, 100.0], np.asarray([0.0, 90.0, 95.0]))
    one_back, two_back = reuse.ages([1.0, 2.0], None)

    # The last cat's nearest is the first one (95 s); at 0.8 the kitten will do (5 s).
    assert at_most_10_s.hit_rates == pytest.approx((1 / 3, 1 / 3, 0.0))
    assert at_most_100_s.hit_rates == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert (at_most_10_s.donor_share, at_most_100_s.donor_share) == (0.0, 1.0)
    assert one_back.hit_rates == pytest.approx((2 / 3, 2 / 3, 0.0))
    assert (one_back.donor_share, two_back.donor_share) == (0.5, 1.0)


def test_warm_up_hits_have_no_age():
    cat, ship = [1.0, 0.0], [0.0, 1.0]
    # The second prompt finds a donor one back, in the warm-up; the fourth finds its own two back.
    reuse = LogReuse.of(np.asarray([cat, cat, ship, cat], np.float32), TABLE, warm_up=2)

    one_back, two_back = reuse.ages([1.0, 2.0], None)

    assert (one_back.donor_share, two_back.donor_share) == (0.0, 1.0)
    assert (one_back.hit_rates[0], two_back.hit_rates[0]) == (0.0, 0.5)


def test_log_without_hits_has_no_age():
    (point,) = LogReuse.of(np.eye(3, dtype=np.float32), TABLE).ages([1.0], None)

    assert point.donor_share is None


def test_a_cosine_on_the_threshold_reaches_it():
    assert saved_by(np.asarray([0.6, 0.8, 0.799, -1.0], np.float32), TABLE).tolist() == [0.1, 0.3, 0.1, 0.0]


def test_the_papers_table_is_the_policys():
    policys = [(rule.min_similarity, rule.saved_share) for rule in NIRVANA_LATENT_THRESHOLDS]

    assert [(rule.min_similarity, rule.saved_share) for rule in NIRVANA_SAVINGS] == policys


def test_a_table_is_read_and_ordered():
    assert parse_table("0.95:0.5,0.65:0.1") == (SavingsRule(0.65, 0.1), SavingsRule(0.95, 0.5))


def test_wrong_table_is_rejected():
    rows = [(text, "^thresholds: ") for text in ("", "0.5", "x:0.1", "1.5:0.1", "0.5:0", "0.5:1.5", "nan:0.5")]

    assert wrong_refusals(InvalidArgument, parse_table, rows) == []
