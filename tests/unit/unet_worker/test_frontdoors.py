import logging

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import Aborted, InvalidArgument
from services.unet_worker.attempts.frontdoors import KnownFrontdoors
from tests.support.logged import said_by

NOW_S = 1_800_000_000.0
NOW_MS = 1_800_000_000_000
A_YEAR_MS = 366 * 24 * 3600 * 1000


@pytest.fixture
def known() -> KnownFrontdoors:
    return KnownFrontdoors(SetClock(NOW_S))


HISTORIES: dict[str, tuple[list[tuple[str, int, str]], list[object]]] = {
    "a newer epoch": ([("f", NOW_MS, "j"), ("f", NOW_MS, "j"), ("f", NOW_MS + 1, "j")], [True, False, True]),
    "the last plausible epoch": ([("f", NOW_MS + A_YEAR_MS, "j")], [True]),
    "a journal begun later": ([("f", NOW_MS, "lost"), ("f", NOW_MS + 1, "new")], [True, True]),
    "a lost journal": ([("f", NOW_MS, "new"), ("f", NOW_MS - 1, "lost")], [True, "true"]),
    "two journals of one epoch": ([("f", NOW_MS, "first"), ("f", NOW_MS, "second")], [True, "true"]),
    "no journal": ([("f", NOW_MS, "j"), ("f", NOW_MS, ""), ("f", 7, "")], [True, False, "false"]),
    "another frontdoor": ([("f", NOW_MS, "j"), ("g", 1, "k")], [True, True]),
}


@pytest.mark.parametrize("what", HISTORIES)
def test_meet_is_true_for_news_and_refuses_stale_epochs(known: KnownFrontdoors, what: str) -> None:
    """A text is the part of the rejection about the journal."""
    met, outcomes = HISTORIES[what]
    for frontdoor, outcome in zip(met, outcomes, strict=True):
        if isinstance(outcome, bool):
            assert known.meet(*frontdoor) is outcome
            continue
        with pytest.raises(Aborted) as caught:
            known.meet(*frontdoor)
        assert caught.value.reason == "STALE_EPOCH"
        assert caught.value.metadata == {"newest_epoch": str(NOW_MS), "other_journal": outcome}


@pytest.mark.parametrize("epoch", [NOW_MS + A_YEAR_MS + 1, 2**63, 2**64 - 1])
def test_impossible_epoch_is_rejected_by_name_and_changes_nothing(known: KnownFrontdoors, epoch: int) -> None:
    with pytest.raises(InvalidArgument, match=f"frontdoor_epoch: must be at most {NOW_MS + A_YEAR_MS}"):
        known.meet("f", epoch, "j")

    assert known.meet("f", NOW_MS, "j")


def test_a_refusal_is_logged_once_and_counted_each_time(
    known: KnownFrontdoors, caplog: pytest.LogCaptureFixture
) -> None:
    known.meet("f", NOW_MS, "j")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(Aborted):
                known.meet("f", NOW_MS - 1, "j")

    assert len(said_by("services.unet_worker.attempts.frontdoors", caplog)) == 1
