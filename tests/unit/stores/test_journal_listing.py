"""Lists of requests are read beside what the journal writes."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from pentimento.domain.requests import RequestState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.journal import Journal
from pentimento.stores.ledger.records import AcceptedRequest
from pentimento.testing.clocks import SetClock

EVERY: frozenset[RequestState] = frozenset()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    open_journal(url).close()
    with closing(Journal(open_engine(url), SetClock())) as journal:
        yield journal


def test_a_list_that_takes_long_keeps_no_commit_waiting(journal: Journal) -> None:
    """A tenant with many requests and few jobs has all of them looked through."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "ORDER BY journal_requests.accepted_at DESC" in statement:
            begun.set()
            go_on.wait(60)

    event.listen(journal._writer._engine, "before_cursor_execute", hold)
    page = journal.listing.page("acme", EVERY, True, 10)
    begun.wait(60)
    try:
        journal.accept(AcceptedRequest("r1", "acme", b"", "hash", 1.0)).result(10)
    finally:
        go_on.set()

    assert page.result(60) == []


def test_a_list_of_a_closed_journal_is_unavailable(journal: Journal) -> None:
    journal.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        journal.listing.page("acme", EVERY, False, 10)
