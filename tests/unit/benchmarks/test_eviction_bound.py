"""Test the offline bound of `eviction` against every choice that any rule could make in small caches."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy", reason="the offline bound is a linear program")

from benchmarks import eviction_replay
from benchmarks.eviction_bound import offline_bound
from benchmarks.eviction_replay import PAPER, REGIMES, Latent, LatentCache, Regime, ReuseLog, log_of, replay
from lab.simulator.eviction import open_eviction
from pentimento.policies.eviction_rules import EVICTION_NAMES

CAPTURED = (10, 25)
LOGS = st.lists(st.lists(st.sampled_from([0, 0, 10, 20, 25]), min_size=5, max_size=5), min_size=2, max_size=5)


def log_from(rows: list[list[int]]) -> ReuseLog:
    """Build a log from each row's allowed steps by earlier request, 0 for none, nearest first."""
    donors = [
        [(row, allowed) for row, allowed in enumerate(each[:number]) if allowed] for number, each in enumerate(rows)
    ]
    return ReuseLog(tuple(tuple(sorted(each, key=lambda donor: -donor[1])) for each in donors))


def best_by_search(log: ReuseLog, begin: int, capacity: int, regime: Regime) -> int:
    """Return the most steps that requests from `begin` on save, over every choice after every request."""

    def most(row: int, held: frozenset[Latent]) -> int:
        if row == len(log):
            return 0
        saved = start_of(log, row, held, regime)
        added = {(row, step) for step in CAPTURED if step > saved} if not saved or regime.hits_add else set()
        scored = saved if row >= begin else 0
        return scored + max(most(row + 1, kept) for kept in choices(held | added, capacity))

    return most(0, frozenset())


def start_of(log: ReuseLog, row: int, held: frozenset[Latent], regime: Regime) -> int:
    entries = {entry for entry, _ in held}
    near = [(entry, allowed) for entry, allowed in log.donors[row] if entry in entries][: regime.nearest_count]
    return max((step for entry, allowed in near for kept, step in held if kept == entry and step <= allowed), default=0)


def choices(items: frozenset[Latent], capacity: int) -> Iterator[frozenset[Latent]]:
    """Yield every set that may stay: any item may be dropped at any time."""
    for count in range(min(len(items), capacity) + 1):
        yield from map(frozenset, combinations(sorted(items), count))


@pytest.fixture(autouse=True)
def _two_latents_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of choices."""
    monkeypatch.setattr("benchmarks.eviction_replay.CAPTURED", CAPTURED)
    monkeypatch.setattr("benchmarks.eviction_bound.CAPTURED", CAPTURED)


@pytest.mark.parametrize("regime", REGIMES, ids=lambda regime: regime.name)
@settings(deadline=None, max_examples=25)
@given(rows=LOGS, capacity=st.integers(1, 3), begin=st.integers(0, 2))
def test_offline_bound_exceeds_every_choice(regime: Regime, rows: list[list[int]], capacity: int, begin: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.eviction_replay.CAPTURED", CAPTURED)
        patch.setattr("benchmarks.eviction_bound.CAPTURED", CAPTURED)
        log = log_from(rows)
        begin = min(begin, len(log) - 1)
        bound = offline_bound(log, begin, capacity, regime)

        assert bound >= best_by_search(log, begin, capacity, regime) - 1e-6
        for name in EVICTION_NAMES if capacity >= len(CAPTURED) else ():
            assert bound >= sum(replay(log, open_eviction(name, capacity), regime, capacity)[begin:]) - 1e-6


def test_offline_bound_respects_capacity() -> None:
    """Requests 2 and 3 want the latents at 25 of 0 and 1; only one can be stored."""
    log = log_from([[], [0], [25, 0], [0, 25, 0]])

    assert offline_bound(log, 0, 2, PAPER) == pytest.approx(50)
    assert offline_bound(log, 0, 1, PAPER) == pytest.approx(25)


def test_offline_bound_without_hit_additions_is_lower() -> None:
    """Request 1 may take ten steps of 0, or miss and let 2 and 3 take 25 of request 1; if all add, it may do both."""
    log = log_from([[], [10], [0, 25], [0, 25, 0]])
    all_add = REGIMES[1]

    assert offline_bound(log, 0, 3, PAPER) == pytest.approx(50)
    assert offline_bound(log, 0, 3, all_add) == pytest.approx(60)


def test_offline_bound_counts_scored_requests() -> None:
    log = log_from([[], [25], [25, 25]])

    assert offline_bound(log, 2, 5, PAPER) == pytest.approx(25)


def test_latent_cache_rejects_capacity_below_one_run() -> None:
    with pytest.raises(ValueError, match="at least 2 latents"):
        LatentCache(open_eviction("fifo", 1), PAPER, 1)


def test_latent_cache_hole_serves_next_smaller_step() -> None:
    cache = LatentCache(open_eviction("lcbfu", 2), PAPER, 2)
    cache.serve(0, [])
    cache._held[0].discard(25)

    assert cache.serve(1, [(0, 25)]) == 10


def test_nearest_entry_serves_before_larger_saving() -> None:
    """Entry 1 began at ten, so that it only has 25 and allows 20."""
    log = ReuseLog(((), ((0, 10),), ((1, 20), (0, 10))))
    saved = [replay(log, open_eviction("fifo", 9), regime, 9)[2] for regime in REGIMES[1:]]

    assert saved == [0, 10]


def test_log_donors_are_earlier_and_nearest_first() -> None:
    """Cosines of 0.92 and 1 with the third: NIRVANA's table allows 20 and 25 of 50 steps."""
    vectors = np.array([[0.92, np.sqrt(1 - 0.92**2)], [1, 0], [1, 0], [0, 1]], np.float32)

    donors = log_of(vectors).donors
    assert donors[2] == ((1, 25), (0, 20))
    assert donors[3] == ()
    assert eviction_replay.STEP_COUNT == 50
