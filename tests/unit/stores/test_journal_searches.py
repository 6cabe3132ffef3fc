"""Searches of the journal run during its commits, use indexes, and read only the rows that they need."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.jobs import RequestState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import Journal
from tests.support.journals import a_journal, an_accepted_request, complete_request
from tests.support.watched_statements import watched_statements

EVERY: frozenset[RequestState] = frozenset()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with a_journal(tmp_path, SetClock()) as opened:
        yield opened


# A search of few jobs reads all requests of a tenant; a receiver that is gone leaves many webhooks.
SEARCHES: dict[str, tuple[str, Callable[[Journal], "Future[Any]"], object]] = {
    "a list": ("accepted_at DESC", lambda journal: journal.listing.page("acme", EVERY, True, 10), []),
    "due webhooks": ("journal_webhooks", lambda journal: journal.webhooks.due(1.0, 10), []),
    "what is kept": ("sum(", lambda journal: journal.objects.kept(), []),
    "the next webhook": ("journal_webhooks", lambda journal: journal.webhooks.next_at(1.0), None),
}


@pytest.mark.parametrize(("words", "search", "found"), SEARCHES.values(), ids=SEARCHES.keys())
def test_search_keeps_no_commit_waiting(
    journal: Journal, words: str, search: Callable[[Journal], "Future[Any]"], found: object
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(_cursor: Any, text: str, _parameters: Any) -> None:
        if words in text:
            begun.set()
            go_on.wait(120)

    with watched_statements(hold):
        searched = search(journal)
        begun.wait(60)
        try:
            journal.accept(an_accepted_request()).result(60)
        finally:
            go_on.set()

        assert searched.result(60) == found


def test_kept_is_summed_from_indexes(journal: Journal) -> None:
    """Every start waits for the sum, and rows are large."""
    plans = plans_of(journal, lambda: journal.objects.kept().result(), "GROUP BY")

    assert len(plans) == 2
    assert [step for plan in plans for step in plan if "COVERING INDEX" not in step] == []


def test_list_page_of_closed_journal_is_unavailable(journal: Journal) -> None:
    journal.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        journal.listing.page("acme", EVERY, False, 10)


def test_forget_finished_reads_each_index_once(journal: Journal) -> None:
    (plan,) = plans_of(journal, lambda: journal.forget_finished(9e9, 5).result(), "journal_webhooks")

    assert len([step for step in plan if "CORRELATED" in step]) == 2
    assert sorted(step for step in plan if " journal_" in step) == [
        "SCAN journal_webhooks USING INDEX journal_webhooks_pending",
        "SEARCH journal_pins USING INDEX sqlite_autoindex_journal_pins_1 (request_id=?)",
        "SEARCH journal_requests USING INDEX journal_finished (finished_at<?)",
        "SEARCH journal_webhooks USING INDEX sqlite_autoindex_journal_webhooks_1 (request_id=?)",
    ]


def plans_of(journal: Journal, search: Callable[[], object], words: str) -> list[list[str]]:
    """Return the plan of each statement with these words that the search runs."""
    sent = list[tuple[str, Any]]()
    with watched_statements(lambda cursor, text, parameters: sent.append((text, parameters))):
        search()
    with journal._reader._engine.connect() as connection:
        return [
            [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
            for text, values in sent
            if words in text
        ]


SIZE = 10


def forgotten(journal: Journal, count: int) -> list[str]:
    return [one.key for one in journal.objects.forget_pictures("tenant", count * SIZE).result()]


def steps_of_forgetting(journal: Journal) -> int:
    """Return in hundreds how many steps SQLite takes to forget one more."""
    steps = []

    def watch(handler: object) -> None:
        journal._writer.submit(
            lambda connection: connection.connection.driver_connection.set_progress_handler(handler, 100)  # type: ignore[union-attr]
        ).result()

    watch(lambda: steps.append(1))
    assert len(forgotten(journal, 1)) == 1
    watch(None)
    return len(steps)


def test_forgetting_images_does_not_scan_forgotten_ones_again(journal: Journal) -> None:
    for number in range(1_000):
        complete_request(journal, f"r{number}", float(number), SIZE)
    few = steps_of_forgetting(journal)
    for _ in range(9):
        assert len(forgotten(journal, 100)) == 100

    assert steps_of_forgetting(journal) <= 2 * few + 2


def test_forgetting_images_of_clock_set_back_comes_last(journal: Journal) -> None:
    for name, at in (("first", 100.0), ("second", 200.0), ("set-back", 50.0)):
        if name == "set-back":
            assert forgotten(journal, 1) == ["results/first"]
        complete_request(journal, name, at, SIZE).result()

    assert [forgotten(journal, 1) for _ in range(3)] == [["results/second"], ["results/set-back"], []]
