"""Test the measured quality of hits in the cache's ledger, on SQLite and PostgreSQL: counted once, kept over a
restart."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pentimento.domain.online_quality import ComparedHit, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from tests.contract.stores.records import on_sqlite

WATCHED = WatchedThreshold("sha256:clip", "sha256:light", "sha256:light", from_image=False, saved_ppm=100_000)
SEEN = ComparedHit(
    "r-1", "sha256:light", "sha256:light", "sha256:clip", False, 5, 50, similarity=0.9, quality=0.2, scratch_quality=0.3
)


def stays(samples: Sequence[QualitySample], position: ThresholdPosition) -> ThresholdPosition:
    return position


def rises(samples: Sequence[QualitySample], position: ThresholdPosition) -> ThresholdPosition:
    """Move the threshold to the newest sample's similarity."""
    return ThresholdPosition(samples[-1].similarity, samples[-1].number)


def note(
    ledger: CacheLedger, request_id: str, watched: WatchedThreshold = WATCHED, kept_count: int = 100, **changes: float
) -> ThresholdPosition | None:
    seen = replace(SEEN, request_id=request_id, **changes)  # type: ignore[arg-type]
    return ledger.note_quality(watched, seen, stays, kept_count).result()


def test_note_quality_counts_hit_once(ledger: CacheLedger) -> None:
    assert note(ledger, "r-1") == ThresholdPosition()
    assert note(ledger, "r-1", quality=0.9) is None
    assert note(ledger, "r-2", similarity=0.95) == ThresholdPosition()

    assert ledger.quality_samples(WATCHED) == [QualitySample(1, 0.9, 0.2, 0.3), QualitySample(2, 0.95, 0.2, 0.3)]


@on_sqlite
def test_note_quality_counts_hit_for_one_threshold(ledger: CacheLedger) -> None:
    other = replace(WATCHED, saved_ppm=200_000)
    note(ledger, "r-1")

    assert note(ledger, "r-1", other) is None
    assert ledger.quality_samples(other) == []


def test_quality_samples_differ_by_every_part_of_key(ledger: CacheLedger) -> None:
    others = [
        replace(WATCHED, encoder_digest="sha256:other"),
        replace(WATCHED, model_digest="sha256:other"),
        replace(WATCHED, reference_model_digest="sha256:other"),
        replace(WATCHED, from_image=True),
        replace(WATCHED, saved_ppm=200_000),
    ]
    note(ledger, "r-1")
    for number, other in enumerate(others, 2):
        ledger.note_quality(other, replace(SEEN, request_id=f"r-{number}", similarity=0.97), rises, 100).result()

    moved = dict.fromkeys(others, ThresholdPosition(0.97, 1))
    assert len(ledger.quality_samples(WATCHED)) == 1
    assert ledger.quality_positions() == {WATCHED: ThresholdPosition(), **moved}
    # Only samples since the threshold's last move count.
    assert ledger.quality_counts() == {WATCHED: 1, **dict.fromkeys(others, 0)}


def test_note_quality_keeps_newest_samples(ledger: CacheLedger) -> None:
    for number in range(1, 8):
        note(ledger, f"r-{number}", kept_count=3)

    assert [sample.number for sample in ledger.quality_samples(WATCHED)] == [5, 6, 7]


def test_quality_position_survives_restart(ledger_url: str) -> None:
    first = open_cache_ledger(ledger_url)
    note(first, "r-1")
    moved = first.note_quality(WATCHED, replace(SEEN, request_id="r-2", similarity=0.93), rises, 100).result()
    first.close()

    second = open_cache_ledger(ledger_url)
    try:
        assert moved == ThresholdPosition(0.93, 2)
        assert second.quality_positions() == {WATCHED: moved}
        assert note(second, "r-3") == moved
        assert note(second, "r-1") is None
    finally:
        second.close()


@on_sqlite
def test_note_quality_with_failing_rule_changes_nothing(ledger: CacheLedger) -> None:
    def fails(samples: Sequence[QualitySample], position: ThresholdPosition) -> ThresholdPosition:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ledger.note_quality(WATCHED, SEEN, fails, 100).result()

    assert ledger.quality_positions() == {}
    assert note(ledger, "r-1") == ThresholdPosition()


def test_note_quality_by_two_gateways_numbers_each_once(ledger_url: str) -> None:
    ledgers = [open_cache_ledger(ledger_url) for _ in range(2)]
    try:
        with ThreadPoolExecutor(4) as threads:
            for number in range(40):
                threads.submit(note, ledgers[number % 2], f"r-{number}")
                # The other gateway receives the same sample.
                threads.submit(note, ledgers[(number + 1) % 2], f"r-{number}")
        found = ledgers[0].quality_samples(WATCHED)
    finally:
        for ledger in ledgers:
            ledger.close()

    assert [sample.number for sample in found] == list(range(1, 41))
