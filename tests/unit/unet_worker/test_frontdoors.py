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


def test_a_newer_epoch_is_news_and_the_same_one_is_not(known: KnownFrontdoors) -> None:
    heard = [known.meet("f", epoch, "j") for epoch in (NOW_MS, NOW_MS, NOW_MS + 1)]

    assert heard == [True, False, True]


@pytest.mark.parametrize("epoch", [NOW_MS + A_YEAR_MS + 1, 2**63, 2**64 - 1])
def test_an_epoch_that_nobody_can_have_is_refused_by_name_and_changes_nothing(
    known: KnownFrontdoors, epoch: int
) -> None:
    with pytest.raises(InvalidArgument, match=f"frontdoor_epoch: must be at most {NOW_MS + A_YEAR_MS}"):
        known.meet("f", epoch, "j")

    assert known.meet("f", NOW_MS, "j")


def test_the_last_believable_epoch_is_believed(known: KnownFrontdoors) -> None:
    assert known.meet("f", NOW_MS + A_YEAR_MS, "j")


def test_a_journal_that_was_begun_later_wins_over_the_one_that_was_lost(known: KnownFrontdoors) -> None:
    known.meet("f", NOW_MS, "lost")

    assert known.meet("f", NOW_MS + 1, "new")


def test_who_still_runs_over_the_lost_journal_is_fenced_off_and_told_why(known: KnownFrontdoors) -> None:
    known.meet("f", NOW_MS, "new")

    with pytest.raises(Aborted) as caught:
        known.meet("f", NOW_MS - 1, "lost")

    assert caught.value.reason == "STALE_EPOCH"
    assert caught.value.metadata == {"newest_epoch": str(NOW_MS), "other_journal": "true"}


def test_of_two_journals_with_one_epoch_the_first_is_served(known: KnownFrontdoors) -> None:
    known.meet("f", NOW_MS, "first")

    with pytest.raises(Aborted):
        known.meet("f", NOW_MS, "second")


def test_a_frontdoor_that_knows_no_journal_goes_by_its_epoch(known: KnownFrontdoors) -> None:
    known.meet("f", NOW_MS, "j")

    assert not known.meet("f", NOW_MS, "")
    with pytest.raises(Aborted) as caught:
        known.meet("f", 7, "")
    assert caught.value.metadata["other_journal"] == "false"


def test_other_frontdoors_have_epochs_of_their_own(known: KnownFrontdoors) -> None:
    known.meet("f", NOW_MS, "j")

    assert known.meet("g", 1, "k")


def test_a_refusal_is_logged_once_and_counted_each_time(
    known: KnownFrontdoors, caplog: pytest.LogCaptureFixture
) -> None:
    known.meet("f", NOW_MS, "j")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(Aborted):
                known.meet("f", NOW_MS - 1, "j")

    assert len(said_by("services.unet_worker.attempts.frontdoors", caplog)) == 1
