"""Test that a run's figures use the hits before the threshold rose and after its last rise."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.online_quality_live import (
    LedgerWatch,
    WatchedHit,
    WatchedRun,
    figures_of,
    lowest,
    shipped_profile,
    too_lenient,
)
from benchmarks.report import Figure
from benchmarks.selector_profile import PROFILES
from pentimento.domain.online_quality import PaintedAgain, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.stores.ledger.cache_ledger import open_cache_ledger

SHIPPED = shipped_profile(PROFILES)
GIVEN = too_lenient(SHIPPED)


def hit(row: int, threshold: float, ratio: float | None) -> WatchedHit:
    sample = None if ratio is None else QualitySample(row, 0.8, 0.3 * ratio, 0.3)
    return WatchedHit(row, threshold, sample)


def figure(figures: Sequence[Figure], part: str) -> Figure:
    (found,) = (one for one in figures if part in one.name)
    return found


def test_too_lenient_profile_has_one_row_at_lower_similarity() -> None:
    (row,) = GIVEN.thresholds()

    assert row.min_similarity < lowest(SHIPPED)
    assert row.saved_share == SHIPPED.thresholds()[-1].saved_share


def test_figures_split_hits_by_threshold() -> None:
    low, middle, high = lowest(GIVEN), 0.6, 0.7
    hits = (hit(1, low, 1.0), hit(2, low, 0.5), hit(5, middle, 0.5), hit(7, high, 0.95), hit(9, high, None))
    figures = figures_of(WatchedRun(10, hits, high), SHIPPED, GIVEN)

    assert figure(figures, "counted").value == pytest.approx(4 / 5)
    assert figure(figures, "the threshold rose").value == 1
    assert figure(figures, "until it first rose").value == 2
    assert figure(figures, "keep 0.9 before").value == pytest.approx(0.5)
    assert figure(figures, "keep 0.9 since").value == 1
    assert figure(figures, "first half").value == pytest.approx(2 / 5)
    assert figure(figures, "second half").value == pytest.approx(3 / 5)
    assert figure(figures, "quality kept before").value == pytest.approx(0.75)


def test_run_with_constant_threshold_falls_short() -> None:
    hits = (hit(1, lowest(GIVEN), 1.0), hit(2, lowest(GIVEN), 1.0))
    figures = figures_of(WatchedRun(4, hits, lowest(GIVEN)), SHIPPED, GIVEN)

    assert not figure(figures, "the threshold rose").ok


async def test_ledger_watch_reads_gateway_samples(tmp_path: Path) -> None:
    ledger = open_cache_ledger(f"sqlite:///{tmp_path}/gateway.sqlite")
    watched = WatchedThreshold(
        SHIPPED.encoder_digest, SHIPPED.model_digest, SHIPPED.reference_model_digest, True, 600_000
    )
    watch = LedgerWatch(ledger, 0.5)
    assert (watch.samples(), watch.threshold()) == ([], 0.5)

    for number, position in ((1, ThresholdPosition()), (2, ThresholdPosition(0.6, 2))):
        seen = PaintedAgain(
            f"r-{number}", watched.model_digest, watched.reference_model_digest, watched.encoder_digest, True, 30, 50,
            0.7, 0.2, 0.3,
        )  # fmt: skip
        ledger.note_quality(watched, seen, lambda samples, before, now=position: now, 400).result()

    first, second = watch.samples()
    assert (first.number, second.number) == (1, 2)
    assert watch.threshold() == 0.6
    assert await watch.counted(0.7 + 1e-9, None) == first
    assert await watch.counted(0.7, first) == second
    ledger.close()
