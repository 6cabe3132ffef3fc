"""Test a journal's leases and epochs, and the calls of a frontdoor that lost its lease."""

from contextlib import closing

from sqlalchemy import text

from lab.fixtures.clocks import SetClock
from pentimento.domain.clock import LeaseState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.database import open_engine
from tests.contract.stores.records import NOW_MS, NOW_S
from tests.support.journals import an_accepted_request


def test_claim_epoch_grows_over_restarts(ledger_url: str) -> None:
    epochs = []
    for wall_s in (NOW_S, NOW_S, NOW_S + 60.0, NOW_S - 60.0):
        journal = open_journal(ledger_url, SetClock(wall_s))
        epochs.append(journal.claim_epoch("a").result())
        journal.close()

    assert epochs == [NOW_MS, NOW_MS + 1, NOW_MS + 60_000, NOW_MS + 60_001]


def test_take_over_of_new_ledger_claims_epoch_by_clock(ledger_url: str) -> None:
    with closing(open_journal(ledger_url, SetClock(NOW_S))) as journal:
        assert journal.take_over("f1", LeaseState(0, 0)).result() == NOW_MS


def test_identity_changes_only_with_renewal(ledger_url: str) -> None:
    names = []
    for renewed in (False, True, False):
        with closing(open_journal(ledger_url)) as journal:
            if renewed:
                journal.renew(above=0).result()
            names.append(journal.identity().result())

    assert names[0] != names[1] == names[2]
    assert [len(bytes.fromhex(name)) for name in names] == [16] * 3


def test_renew_supersedes_holder_and_exceeds_named_epoch(ledger_url: str) -> None:
    with closing(open_journal(ledger_url, SetClock(NOW_S))) as journal:
        held = journal.claim_epoch("f1").result()

        assert journal.renew(above=NOW_MS + 7_000).result() == NOW_MS + 7_001
        assert not journal.beat(held).result()
        assert journal.claim_epoch("f1").result() == NOW_MS + 7_002


def test_epoch_row_names_active_frontdoor(journal: Journal, ledger_url: str) -> None:
    names = []
    for change in (lambda: journal.claim_epoch("f1"), lambda: journal.renew(above=0)):
        change().result()
        engine = open_engine(ledger_url)
        with engine.connect() as connection:
            names.append(connection.execute(text("SELECT frontdoor_id FROM journal_epoch")).scalar_one())
        engine.dispose()

    assert names == ["f1", ""]


def test_claim_epoch_without_clock_uses_system_time(journal: Journal) -> None:
    assert journal.claim_epoch("f1").result() > NOW_MS - 10**12


def test_journal_time_continues_over_starts(ledger_url: str) -> None:
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


def test_request_keeps_journal_time_of_acceptance(ledger_url: str) -> None:
    clock = SetClock(NOW_S, 10.0)
    with closing(open_journal(ledger_url, clock)) as journal:
        journal.accept(an_accepted_request("r0")).result()
        journal.time.resume().result()
        clock.monotonic_s += 7.0
        journal.accept(an_accepted_request("r1")).result()
        kept = {one.request.request_id: one.accepted_counted_s for one in journal.unfinished().result()}

    assert kept == {"r0": None, "r1": 7.0}
