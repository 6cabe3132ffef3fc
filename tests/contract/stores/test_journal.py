"""Test calls of the journal that no history has (test_journal_machine.py), on SQLite and on PostgreSQL."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.jobs import RequestState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.records import (
    AcceptedRequest,
    AcceptKind,
    AttemptRecord,
    JournalledRequest,
    PicturePin,
)
from tests.contract.stores.records import on_sqlite
from tests.support.journals import a_result, an_accepted_request, complete_request
from tests.support.values import an_attempt


def test_load_plan_returns_last_saved_plan(journal: Journal) -> None:
    assert journal.load_plan().result() is None

    journal.save_plan(b"\x00first").result()
    journal.save_plan(b"\x00second").result()

    assert journal.load_plan().result() == b"\x00second"


def test_accept_unstorable_value_fails_alone(journal: Journal) -> None:
    bad = journal.accept(an_accepted_request("surrogate-\ud800"))
    good = journal.accept(an_accepted_request("r1"))
    too_large = journal.start_attempt(an_attempt("r1", fencing_token=2**70), "w1")

    assert good.result().kind is AcceptKind.NEW
    for refused in (bad, too_large):
        with pytest.raises(InvalidArgument):
            refused.result()
    assert journal.get("r1", "tenant").result() is not None


def test_close_commits_queued_calls(ledger_url: str) -> None:
    journal = open_journal(ledger_url)
    futures = [journal.accept(an_accepted_request(f"r{number}")) for number in range(100)]
    journal.close()

    assert all(future.result().kind is AcceptKind.NEW for future in futures)
    with pytest.raises(StoreUnavailable):
        journal.accept(an_accepted_request())


def test_journalled_request_repr_hides_bytes() -> None:
    attempt_record = AttemptRecord(an_attempt(), "w1", 0.0, 0)
    record = JournalledRequest(
        an_accepted_request(body=b"secret"),
        RequestState.COMPLETED,
        b"secret",
        attempt_record,
        1,
        a_result(provenance=b"secret"),
        "",
        "",
        1.0,
        0,
    )

    assert "secret" not in repr(record)


@on_sqlite
@pytest.mark.parametrize(
    ("misuse", "field"),
    [
        (lambda journal: journal.route_and_start(an_attempt("unknown"), "w1", b"route").result(), "request_id"),
        (lambda journal: journal.finish("r1", RequestState.RUNNING, "", ""), "state"),
        (lambda journal: journal.finish("r1", RequestState.COMPLETED, "", ""), "state"),
    ],
    ids=["attempt of unknown request", "finish as running", "finish as completed"],
)
def test_journal_wrong_argument_names_its_field(
    journal: Journal, misuse: Callable[[Journal], object], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        misuse(journal)

    assert [violation.field for violation in refused.value.violations] == [field]


def of_one_key(count: int) -> list[AcceptedRequest]:
    return [an_accepted_request(f"r{number}", idempotency_key="k") for number in range(count)]


def test_accept_concurrent_calls_of_key_one_is_new(journal: Journal) -> None:
    with ThreadPoolExecutor(16) as threads:
        futures = list(threads.map(journal.accept, of_one_key(64)))
    outcomes = [future.result() for future in futures]

    assert sum(outcome.kind is AcceptKind.NEW for outcome in outcomes) == 1
    assert len({outcome.request_id for outcome in outcomes}) == 1


def test_accept_two_frontdoors_of_key_one_is_new(ledger_url: str) -> None:
    journals = [open_journal(ledger_url) for _ in range(2)]
    futures = [journals[number % 2].accept(record) for number, record in enumerate(of_one_key(40))]
    outcomes = [future.result() for future in futures]
    for journal in journals:
        journal.close()

    assert sum(outcome.kind is AcceptKind.NEW for outcome in outcomes) == 1


def test_forget_finished_searches_during_writes_and_spares_new_pin(journal: Journal) -> None:
    complete_request(journal, "r1", at=900.0).result()
    goes_on = threading.Event()
    holding = journal._submit(lambda connection: goes_on.wait(60))

    pin = journal.pins.pin(PicturePin("r1", "tenant", math.inf, 40), 100)
    gone = journal.forget_finished(1e12, 10)
    read = journal._reader.submit(lambda connection: None)

    read.result(60)
    assert not holding.done()
    goes_on.set()
    assert (pin.result(), gone.result()) == (None, [])
