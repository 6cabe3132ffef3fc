"""Test the takeover by a synchronous standby after a PostgreSQL primary was killed."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from lab.fixtures.postgresql_pair import PostgresqlPair, running_pair
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest

pytestmark = pytest.mark.server
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def pair() -> Iterator[PostgresqlPair]:
    with running_pair() as started:
        yield started


def record_of(request_id: str) -> AcceptedRequest:
    return AcceptedRequest(request_id, "tenant", b"", "hash", 1.0, idempotency_key=request_id)


def accept(journal: Journal, request_id: str) -> None:
    """Accept a request, and retry after each failure, as a client under its idempotency key does."""
    while True:
        try:
            journal.accept(record_of(request_id)).result()
        except StoreUnavailable:
            continue
        return


def test_journal_reaches_new_primary_and_keeps_requests_after_each_failover(pair: PostgresqlPair) -> None:
    with closing(open_journal(pair.new_database())) as journal:
        for number in range(2):
            accept(journal, f"r{number}")
            pair.fail_over()
            pair.rebuild_standby()
        accept(journal, "r2")

        found = [journal.get(f"r{number}", "tenant").result() for number in range(3)]

    assert [record is not None for record in found] == [True, True, True]


def test_accept_is_not_answered_before_standby_has_it(pair: PostgresqlPair) -> None:
    with closing(open_journal(pair.new_database())) as journal:
        accept(journal, "r0")
        stopped = pair.standby.processes()
        for process in stopped:
            process.suspend()

        try:
            accepted = journal.accept(record_of("r1"))
            while not pair.primary.execute(WAITING):
                pass
            assert not accepted.done()
        finally:
            for process in stopped:
                process.resume()
        accepted.result()
