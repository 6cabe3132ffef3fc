"""Who is active over a journal: epochs, leases, and what becomes of who was superseded."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from lab.fixtures.clocks import SetClock
from pentimento.domain.epochs import LeaseState
from pentimento.domain.errors import Unavailable
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.records import (
    AcceptKind,
)
from tests.contract.stores.journal_records import NOW_MS, NOW_S, attempt, request, result


def test_epochs_grow_for_everybody(journal: Journal) -> None:
    epochs = [journal.claim_epoch(name).result() for name in ("a", "b", "a")]

    assert epochs == sorted(set(epochs))


def test_epochs_grow_over_restarts(ledger_url: str) -> None:
    epochs = []
    for wall_s in (NOW_S, NOW_S, NOW_S + 60.0, NOW_S - 60.0):
        journal = open_journal(ledger_url, SetClock(wall_s))
        epochs.append(journal.claim_epoch("a").result())
        journal.close()

    assert epochs == [NOW_MS, NOW_MS + 1, NOW_MS + 60_000, NOW_MS + 60_001]


def test_a_standby_takes_over_with_an_epoch_by_the_clock(ledger_url: str) -> None:
    with closing(open_journal(ledger_url, SetClock(NOW_S))) as journal:
        assert journal.take_over("f1", LeaseState(0, 0)).result() == NOW_MS


def test_a_journal_is_the_same_from_start_to_start_and_another_once_it_was_renewed(ledger_url: str) -> None:
    names = []
    for renewed in (False, True, False):
        with closing(open_journal(ledger_url)) as journal:
            if renewed:
                journal.renew(above=0).result()
            names.append(journal.identity().result())

    assert names[0] != names[1] == names[2]
    assert [len(bytes.fromhex(name)) for name in names] == [16] * 3


def test_two_new_journals_are_not_the_same(tmp_path: Path) -> None:
    urls = (f"sqlite:///{tmp_path / 'a.sqlite'}", f"sqlite:///{tmp_path / 'b.sqlite'}")
    names = set()
    for url in urls:
        with closing(open_journal(url)) as journal:
            names.add(journal.identity().result())

    assert len(names) == 2


def test_a_renewed_journal_is_above_what_was_named_and_its_holder_is_superseded(ledger_url: str) -> None:
    with closing(open_journal(ledger_url, SetClock(NOW_S))) as journal:
        held = journal.claim_epoch("f1").result()

        assert journal.renew(above=NOW_MS + 7_000).result() == NOW_MS + 7_001
        assert not journal.beat(held).result()
        assert journal.claim_epoch("f1").result() == NOW_MS + 7_002


def test_an_older_epoch_is_fenced_off(journal: Journal) -> None:
    journal.accept(request()).result()
    journal.start_attempt(attempt(5, epoch=2), "w1").result()

    assert not journal.start_attempt(attempt(6, epoch=1), "w1").result()


def test_a_holder_that_beats_is_not_taken_over(journal: Journal) -> None:
    epoch = journal.claim_epoch("f1").result()
    seen = journal.lease().result()
    assert journal.beat(epoch).result()

    assert journal.take_over("f2", seen).result() is None
    assert journal.beat(epoch).result()


def test_one_of_two_standbys_takes_over_from_a_silent_holder(journal: Journal) -> None:
    epoch = journal.claim_epoch("f1").result()
    seen = journal.lease().result()

    taken, second = journal.take_over("f2", seen).result(), journal.take_over("f3", seen).result()

    assert taken is not None and taken > epoch
    assert second is None
    assert not journal.beat(epoch).result()


def test_nobody_was_ever_active_in_a_new_ledger(journal: Journal) -> None:
    assert journal.take_over("f1", LeaseState(0, 0)).result()


def test_what_a_superseded_frontdoor_would_accept_is_refused(journal: Journal) -> None:
    """Whoever superseded it has read what was accepted already: this one would be lost."""
    epoch = journal.claim_epoch("f1").result()
    journal.claim_epoch("f2").result()

    with pytest.raises(Unavailable, match="taken over"):
        journal.accept(request(frontdoor_epoch=epoch)).result()
    assert journal.unfinished().result() == []


def test_a_frontdoor_accepts_under_the_newest_epoch_and_under_none(journal: Journal) -> None:
    epoch = journal.claim_epoch("f1").result()

    assert journal.accept(request("r1", frontdoor_epoch=epoch)).result().kind is AcceptKind.NEW
    assert journal.accept(request("r2")).result().kind is AcceptKind.NEW


def test_who_is_superseded_is_told_when_to_come_back(journal: Journal) -> None:
    epoch = journal.claim_epoch("f1").result()
    journal.claim_epoch("f2").result()

    with pytest.raises(Unavailable) as refused:
        journal.accept(request(frontdoor_epoch=epoch)).result()

    assert (refused.value.reason, refused.value.retry_after_ms) == ("SUPERSEDED", 1000)


def test_a_lease_counts_its_holder_s_beats(journal: Journal) -> None:
    journal.beat(journal.claim_epoch("f1").result()).result()
    epoch = journal.claim_epoch("f2").result()
    fresh = journal.lease().result()
    for _ in range(2):
        journal.beat(epoch).result()

    assert (fresh, journal.lease().result()) == (LeaseState(epoch, 0), LeaseState(epoch, 2))


def test_a_holder_that_was_superseded_while_it_was_silent_is_not_taken_over_again(journal: Journal) -> None:
    seen = journal.lease().result()
    journal.claim_epoch("f1").result()

    assert journal.take_over("f2", seen).result() is None


def test_the_ledger_names_who_is_active(journal: Journal, ledger_url: str) -> None:
    names = []
    for change in (lambda: journal.claim_epoch("f1"), lambda: journal.renew(above=0)):
        change().result()
        engine = open_engine(ledger_url)
        with engine.connect() as connection:
            names.append(connection.execute(text("SELECT frontdoor_id FROM journal_epoch")).scalar_one())
        engine.dispose()

    assert names == ["f1", ""]


def test_epochs_are_the_systems_time_where_no_clock_is_given(journal: Journal) -> None:
    assert journal.claim_epoch("f1").result() > NOW_MS - 10**12


def test_a_superseded_frontdoor_ends_no_request(journal: Journal) -> None:
    """Whoever superseded it goes on with what was not ended by then."""
    epoch = journal.claim_epoch("f1").result()
    journal.accept(request(frontdoor_epoch=epoch)).result()
    newer = journal.claim_epoch("f2").result()

    assert not journal.finish("r1", RequestState.CANCELLED, "CLIENT_LEFT", "", epoch).result()
    assert journal.finish("r1", RequestState.EXPIRED, "DEADLINE_EXCEEDED", "", newer).result()


def test_a_superseded_frontdoor_starts_no_attempt(journal: Journal) -> None:
    """Whoever superseded it may follow the attempt before: its picture could not be committed any more."""
    epoch = journal.claim_epoch("f1").result()
    journal.accept(request(frontdoor_epoch=epoch)).result()
    journal.start_attempt(attempt(1, epoch=epoch), "w1").result()
    journal.claim_epoch("f2").result()

    assert not journal.start_attempt(attempt(2, epoch=epoch), "w2").result()
    assert journal.route_and_start(attempt(2, epoch=epoch), "w2", b"route").result() == (b"route", False)
    assert journal.commit_result(attempt(1, epoch=epoch), result()).result()


def test_a_superseded_frontdoor_pins_no_route(journal: Journal) -> None:
    epoch = journal.claim_epoch("f1").result()
    journal.accept(request(frontdoor_epoch=epoch)).result()
    newer = journal.claim_epoch("f2").result()

    journal.route_and_start(attempt(1, epoch=epoch), "w1", b"old").result()

    assert journal.route_and_start(attempt(2, epoch=newer), "w2", b"new").result() == (b"new", True)


def test_journal_time_goes_on_over_starts(ledger_url: str) -> None:
    counted = []
    for boot_s in (1000.0, 1100.0):
        clock = SetClock(NOW_S, boot_s)
        with closing(open_journal(ledger_url, clock)) as journal:
            journal.time.resume().result()
            epoch = journal.claim_epoch("a").result()
            clock.monotonic_s += 7.0
            assert journal.beat(epoch).result()
            counted.append(journal.time.counted_s)

    assert counted == [7.0, 7.0 + 93.0 + 7.0]


def test_request_keeps_journal_time_of_its_acceptance(ledger_url: str) -> None:
    clock = SetClock(NOW_S, 10.0)
    with closing(open_journal(ledger_url, clock)) as journal:
        journal.accept(request("r0")).result()
        journal.time.resume().result()
        clock.monotonic_s += 7.0
        journal.accept(request("r1")).result()
        kept = {one.request.request_id: one.accepted_counted_s for one in journal.unfinished().result()}

    assert kept == {"r0": None, "r1": 7.0}
