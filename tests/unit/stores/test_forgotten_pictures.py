"""How much the journal's one thread looks through so as to forget a tenant's oldest pictures."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.records import AcceptedRequest, ResultRecord

SIZE = 10


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(open_journal(f"sqlite:///{tmp_path}/ledger.sqlite", SetClock())) as journal:
        yield journal


def complete(journal: Journal, name: str, at: float) -> "Future[bool]":
    journal.accept(AcceptedRequest(name, "acme", b"", "hash", at))
    attempt = Attempt(name, 1, 1, "frontdoor", 1, "acme")
    journal.start_attempt(attempt, "worker")
    image = ObjectReference(f"results/{name}", f"sha256:{name}", SIZE)
    return journal.commit_result(attempt, ResultRecord(image, "png", 8, 8, b"", completed_at=at))


def forgotten(journal: Journal, count: int) -> list[str]:
    return [one.key for one in journal.objects.forget_pictures("acme", count * SIZE).result()]


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


def test_what_was_forgotten_is_not_looked_through_again(journal: Journal) -> None:
    for number in range(1_000):
        complete(journal, f"r{number}", float(number))
    few = steps_of_forgetting(journal)
    for _ in range(9):
        assert len(forgotten(journal, 100)) == 100

    assert steps_of_forgetting(journal) <= 2 * few + 2


def test_what_a_clock_that_was_set_back_left_behind_is_forgotten_last(journal: Journal) -> None:
    for name, at in (("first", 100.0), ("second", 200.0), ("set-back", 50.0)):
        if name == "set-back":
            assert forgotten(journal, 1) == ["results/first"]
        complete(journal, name, at).result()

    assert [forgotten(journal, 1) for _ in range(3)] == [["results/second"], ["results/set-back"], []]
