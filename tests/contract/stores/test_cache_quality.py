"""What hits were seen to keep, in the cache's ledger, on SQLite and PostgreSQL: counted once, kept over a restart."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pentimento.domain.online_quality import PaintedAgain, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger

WATCHED = WatchedThreshold("sha256:clip", "sha256:light", "sha256:light", from_image=False, saved_ppm=100_000)
SEEN = PaintedAgain(
    "r-1", "sha256:light", "sha256:light", "sha256:clip", False, 5, 50, similarity=0.9, quality=0.2, scratch_quality=0.3
)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[CacheLedger]:
    ledger = open_cache_ledger(ledger_url)
    yield ledger
    ledger.close()


def stays(samples: Sequence[QualitySample], position: ThresholdPosition) -> ThresholdPosition:
    return position


def rises(samples: Sequence[QualitySample], position: ThresholdPosition) -> ThresholdPosition:
    """To the newest sample's similarity."""
    return ThresholdPosition(samples[-1].similarity, samples[-1].number)


def note(
    ledger: CacheLedger, request_id: str, watched: WatchedThreshold = WATCHED, kept_count: int = 100, **changes: float
) -> ThresholdPosition | None:
    seen = replace(SEEN, request_id=request_id, **changes)  # type: ignore[arg-type]
    return ledger.note_quality(watched, seen, stays, kept_count).result()


def test_a_hit_counts_once(ledger: CacheLedger) -> None:
    assert note(ledger, "r-1") == ThresholdPosition()
    assert note(ledger, "r-1", quality=0.9) is None
    assert note(ledger, "r-2", similarity=0.95) == ThresholdPosition()

    assert ledger.quality_samples(WATCHED) == [QualitySample(1, 0.9, 0.2, 0.3), QualitySample(2, 0.95, 0.2, 0.3)]


def test_a_hit_counts_for_one_threshold_alone(ledger: CacheLedger) -> None:
    other = replace(WATCHED, saved_ppm=200_000)
    note(ledger, "r-1")

    assert note(ledger, "r-1", other) is None
    assert ledger.quality_samples(other) == []


@pytest.mark.parametrize(
    "other",
    [
        replace(WATCHED, encoder_digest="sha256:other"),
        replace(WATCHED, model_digest="sha256:other"),
        replace(WATCHED, reference_model_digest="sha256:other"),
        replace(WATCHED, from_image=True),
        replace(WATCHED, saved_ppm=200_000),
    ],
)
def test_thresholds_are_told_apart_by_every_part_of_their_key(ledger: CacheLedger, other: WatchedThreshold) -> None:
    note(ledger, "r-1")
    ledger.note_quality(other, replace(SEEN, request_id="r-2", similarity=0.97), rises, 100).result()

    assert len(ledger.quality_samples(WATCHED)) == 1
    assert ledger.quality_positions() == {WATCHED: ThresholdPosition(), other: ThresholdPosition(0.97, 1)}


def test_only_the_newest_samples_are_kept_and_numbers_go_on(ledger: CacheLedger) -> None:
    for number in range(1, 8):
        note(ledger, f"r-{number}", kept_count=3)

    assert [sample.number for sample in ledger.quality_samples(WATCHED)] == [5, 6, 7]


def test_a_threshold_that_moved_stands_there_after_a_restart(ledger_url: str) -> None:
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


def test_a_judge_that_fails_leaves_nothing_behind(ledger: CacheLedger) -> None:
    def fails(samples: Sequence[QualitySample], position: ThresholdPosition) -> ThresholdPosition:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ledger.note_quality(WATCHED, SEEN, fails, 100).result()

    assert ledger.quality_positions() == {}
    assert note(ledger, "r-1") == ThresholdPosition()


def test_two_gateways_over_one_ledger_number_every_sample_once(ledger_url: str) -> None:
    ledgers = [open_cache_ledger(ledger_url) for _ in range(2)]
    try:
        with ThreadPoolExecutor(4) as threads:
            for number in range(40):
                threads.submit(note, ledgers[number % 2], f"r-{number}")
                # The other gateway is told of it too.
                threads.submit(note, ledgers[(number + 1) % 2], f"r-{number}")
        found = ledgers[0].quality_samples(WATCHED)
    finally:
        for ledger in ledgers:
            ledger.close()

    assert [sample.number for sample in found] == list(range(1, 41))
