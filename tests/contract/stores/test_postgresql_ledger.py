"""What only a server can do wrong."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.records import AcceptedRequest
from tests.postgresql import PostgresqlServer


def test_a_broken_connection_costs_nothing_but_the_commit_it_broke(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    journal = open_journal(url)
    journal.claim_epoch("a").result()

    postgresql.break_connections()
    record = AcceptedRequest("r1", "tenant", b"", "hash", 1.0)
    try:
        journal.accept(record).result()
    except StoreUnavailable:
        journal.accept(record).result()

    assert journal.get("r1", "tenant").result() is not None
    journal.close()


def test_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable):
        open_journal("postgresql+psycopg://nobody@/nothing?host=/nonexistent")


def test_two_services_migrate_one_database_at_once(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    with ThreadPoolExecutor(4) as threads:
        journals = list(threads.map(open_journal, [url] * 4))

    assert sorted(journal.claim_epoch("a").result() for journal in journals) == [1, 2, 3, 4]
    for journal in journals:
        journal.close()
