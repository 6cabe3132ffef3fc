"""Test which requests count as lost, as changed and as committed twice."""

from dataclasses import replace

import pytest

from benchmarks.faulted_load import Sample

GOOD = Sample(
    "key",
    0,
    request_id="r1",
    images=[b"picture"],
    state="completed",
    rows=1,
    commits=1,
    equals_reference=True,
    stays_the_same=True,
)
LEFT = replace(GOOD, images=[], state="cancelled", error="CLIENT_LEFT", commits=0)


def test_sample_with_image_is_neither_lost_nor_changed() -> None:
    assert (GOOD.lost, GOOD.changed, GOOD.committed_twice) == (False, False, False)


@pytest.mark.parametrize(
    "sample",
    [
        replace(GOOD, images=[]),
        replace(GOOD, state="failed"),
        replace(GOOD, state="missing"),
        replace(LEFT, error="WORKER_LOST"),
        replace(LEFT, commits=1),
    ],
)
def test_sample_without_image_is_lost(sample: Sample) -> None:
    assert sample.lost


def test_sample_cancelled_for_lost_client_is_not_lost() -> None:
    assert not LEFT.lost


@pytest.mark.parametrize(
    "sample",
    [
        replace(GOOD, commits=2),
        replace(GOOD, rows=2),
        replace(GOOD, images=[b"picture", b"picture"]),
        replace(GOOD, stays_the_same=False),
    ],
)
def test_sample_with_second_commit_is_committed_twice(sample: Sample) -> None:
    assert sample.committed_twice


def test_cached_sample_may_differ_from_reference() -> None:
    assert replace(GOOD, equals_reference=False).changed
    assert not replace(GOOD, equals_reference=False, cached=True).changed
