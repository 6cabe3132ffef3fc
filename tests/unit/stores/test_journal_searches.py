"""What has to be looked for is read beside what the journal writes."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from lab.fixtures.clocks import SetClock
from pentimento.domain.requests import RequestState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.journal import Journal
from pentimento.stores.ledger.records import AcceptedRequest

EVERY: frozenset[RequestState] = frozenset()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    open_journal(url).close()
    with closing(Journal(open_engine(url), SetClock())) as journal:
        yield journal


# A tenant with many requests and few jobs has all of them looked through; a receiver that is gone leaves many webhooks.
SEARCHES: dict[str, tuple[str, Callable[[Journal], "Future[Any]"], object]] = {
    "a list": ("accepted_at DESC", lambda journal: journal.listing.page("acme", EVERY, True, 10), []),
    "due webhooks": ("journal_webhooks", lambda journal: journal.webhooks.due(1.0, 10), []),
    "what is kept": ("sum(", lambda journal: journal.objects.kept(), []),
    "the next webhook": ("journal_webhooks", lambda journal: journal.webhooks.next_at(1.0), None),
}


@pytest.mark.parametrize(("words", "search", "found"), SEARCHES.values(), ids=SEARCHES.keys())
def test_what_takes_long_to_find_keeps_no_commit_waiting(
    journal: Journal, words: str, search: Callable[[Journal], "Future[Any]"], found: object
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if words in statement:
            begun.set()
            go_on.wait(120)

    event.listen(journal._writer._engine, "before_cursor_execute", hold)
    searched = search(journal)
    begun.wait(60)
    try:
        journal.accept(AcceptedRequest("r1", "acme", b"", "hash", 1.0)).result(60)
    finally:
        go_on.set()

    assert searched.result(60) == found


def test_what_is_kept_is_summed_from_indexes_alone(journal: Journal) -> None:
    """Every start waits for it, and rows are large."""
    engine, sent = journal._reader._engine, list[tuple[str, Any]]()
    event.listen(engine, "before_cursor_execute", lambda *of: sent.append((of[2], of[3])))
    journal.objects.kept().result()
    with engine.connect() as connection:
        plans = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all() for text, values in tuple(sent)]

    assert len(plans) == 2
    assert [row[3] for plan in plans for row in plan if "COVERING INDEX" not in row[3]] == []


def test_a_list_of_a_closed_journal_is_unavailable(journal: Journal) -> None:
    journal.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        journal.listing.page("acme", EVERY, False, 10)
