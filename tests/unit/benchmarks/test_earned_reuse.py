"""Test the histories of `earned_reuse` on pairs with known shares."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks.earned_pairs import IMAGE_PAIRS, IMAGE_STEPS, LEAST, STEPS, MeasuredPair, read_pairs
from benchmarks.earned_reuse import WORK_SHARE, Earning, EarningHistory, figures_of, lower_bound, recorded_step
from pentimento.stores.ledger.cache.ledger import open_cache_ledger

GOOD, BAD = 1.0, 0.5


def played(folder: Path, kept: float, most: int, *, from_images: bool = False) -> EarningHistory:
    """Return a history of requests at 0.96; every start keeps that share."""
    pairs = [MeasuredPair(0.96, 1.0, dict.fromkeys(IMAGE_STEPS if from_images else STEPS, kept))]
    ledger = open_cache_ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    try:
        return asyncio.run(Earning(ledger, np.array([0.96]), pairs, seed=1, from_images=from_images).play(most))
    finally:
        ledger.close()


def test_history_of_good_starts_ends_near_the_profile(tmp_path: Path) -> None:
    found = played(tmp_path, GOOD, 2000)

    assert found.reached and found.trials == 75
    assert (found.opened_at, found.similarity) == (found.requests, 0.95)
    # A trial of K = 25 takes 30 steps of 50: 12 requests pay for it.
    assert found.requests == pytest.approx(75 * 12, rel=0.02)
    assert found.shadow_steps / found.image_steps <= WORK_SHARE
    assert (found.hits, found.checks[-1]) == ([], 1.0)


def test_history_of_good_images_opens_their_first_cell(tmp_path: Path) -> None:
    found = played(tmp_path, GOOD, 1000, from_images=True)

    # A trial of K = 30 takes 26 steps of 50.
    assert found.opened_at == pytest.approx(75 * 26 / 2.5, rel=0.05)
    assert found.similarity == 0.3 and found.hits
    assert found.shadow_steps / found.image_steps <= WORK_SHARE


def test_history_of_bad_starts_earns_nothing(tmp_path: Path) -> None:
    found = played(tmp_path, BAD, 600)

    assert (found.reached, found.hits) == (False, [])
    assert found.trials > 0


def test_figures_hold_their_targets() -> None:
    good = EarningHistory([1.0], [1.0], [0.95], 1000, 40, 75, 1500, True, 1500, 0.95)
    late = EarningHistory([1.0], [1.0], [0.85], 1000, 60, 75, 9000, False, 800, 0.97)

    assert [figure.ok for figure in figures_of([good] * 3, 20_000)[:3]] == [True] * 3
    assert [figure.ok for figure in figures_of([late] * 3, 20_000)[:3]] == [False] * 3


def test_recorded_pairs_stand_for_no_smaller_k() -> None:
    assert [recorded_step(step) for step in (5, 10, 15, 25)] == [10, 10, 25, 25]
    pairs = read_pairs()
    assert len(pairs) >= 300 and pairs[0].similarity >= LEAST
    assert lower_bound([1.0, 1.0]) == 1.0


def test_recorded_images_are_nearest_earlier_ones() -> None:
    pairs = read_pairs(IMAGE_PAIRS)

    assert len(pairs) >= 300 and pairs[0].qualities.keys() == {30}
    assert pairs[0].similarity < 0.6 < 0.7 < pairs[-1].similarity
