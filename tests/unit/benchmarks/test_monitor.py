"""Test the share of a load that sixteen devices can carry."""

import pytest

from benchmarks.monitor import carried_shares
from lab.runs import Outcome, RequestRecord


def record(at_s: float, start_step: int, outcome: Outcome = Outcome.COMPLETED) -> RequestRecord:
    return RequestRecord(f"{at_s}", "", "", "", at_s, 100.0, at_s + 1.0, outcome, start_step=start_step)


def test_carried_share_uses_large_model_for_misses() -> None:
    """Ten misses are 915 s, ten hits of half a run 32.5 s; sixteen devices have 160 s in ten."""
    records = [record(number, start) for number in range(10) for start in (0, 25)]

    assert carried_shares(records, [0.0, 10.0]) == pytest.approx([160.0 / 947.5])


def test_carried_share_assumes_unanswered_like_answered() -> None:
    records = [record(0.0, 0), *(record(1.0, 0, Outcome.REJECTED) for _ in range(9))]

    assert carried_shares(records, [0.0, 10.0]) == pytest.approx([160.0 / 915.0])


def test_carried_share_is_at_most_one() -> None:
    assert carried_shares([record(0.0, 0), record(11.0, 0)], [0.0, 10.0, 30.0]) == pytest.approx([1.0, 1.0])
