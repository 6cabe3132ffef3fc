"""A request is accepted once for each idempotency key, on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor

from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.records import (
    AcceptKind,
    AcceptOutcome,
)
from tests.contract.stores.journal_records import attempt, request


def test_an_idempotency_key_finds_the_first_request(journal: Journal) -> None:
    first = journal.accept(request("r1", idempotency_key="k")).result()
    second = journal.accept(request("r2", idempotency_key="k")).result()

    assert (first.kind, first.request_id) == (AcceptKind.NEW, "r1")
    assert (second.kind, second.request_id) == (AcceptKind.EXISTING, "r1")
    assert journal.get("r2", "tenant").result() is None


def test_an_idempotency_key_with_another_body_is_told_apart(journal: Journal) -> None:
    journal.accept(request("r1", idempotency_key="k")).result()

    second = journal.accept(request("r2", idempotency_key="k", body_hash="other")).result()

    assert second.kind is AcceptKind.BODY_DIFFERS


def test_idempotency_keys_belong_to_a_tenant(journal: Journal) -> None:
    journal.accept(request("r1", idempotency_key="k")).result()

    second = journal.accept(request("r2", tenant="other", idempotency_key="k")).result()

    assert second.kind is AcceptKind.NEW


def test_key_of_unkept_request_is_free_again(journal: Journal) -> None:
    for request_id, key in (("r1", "k"), ("r2", "k2"), ("r3", "k3")):
        journal.accept(request(request_id, idempotency_key=key)).result()
    failed = (RequestState.FAILED, "STORE_FULL", "no room", 0)

    assert journal.finish("r1", *failed, ["r1", "r2"]).result()
    assert not journal.finish("r1", *failed, ["r3"]).result()

    again = [journal.accept(request(f"again-{key}", idempotency_key=key)).result().kind for key in ("k", "k2", "k3")]
    assert again == [AcceptKind.NEW, AcceptKind.NEW, AcceptKind.EXISTING]
    kept = journal.get("r1", "tenant").result()
    assert kept is not None and (kept.state, kept.error_reason) == (RequestState.FAILED, "STORE_FULL")


def test_requests_without_a_key_are_all_new(journal: Journal) -> None:
    kinds = [journal.accept(request(f"r{number}")).result().kind for number in range(3)]

    assert kinds == [AcceptKind.NEW] * 3


def test_a_repeated_accept_without_a_key_finds_itself(journal: Journal) -> None:
    journal.accept(request("r1")).result()

    assert journal.accept(request("r1")).result().kind is AcceptKind.EXISTING


def test_one_of_many_concurrent_accepts_of_a_key_is_new(journal: Journal) -> None:
    with ThreadPoolExecutor(16) as threads:
        futures = list(threads.map(lambda n: journal.accept(request(f"r{n}", idempotency_key="k")), range(64)))
    outcomes = [future.result() for future in futures]

    assert sum(outcome.kind is AcceptKind.NEW for outcome in outcomes) == 1
    assert len({outcome.request_id for outcome in outcomes}) == 1


def test_two_frontdoors_on_one_ledger_accept_a_key_once(ledger_url: str) -> None:
    journals = [open_journal(ledger_url) for _ in range(2)]
    futures = [journals[number % 2].accept(request(f"r{number}", idempotency_key="k")) for number in range(40)]
    outcomes = [future.result() for future in futures]
    for journal in journals:
        journal.close()

    assert sum(outcome.kind is AcceptKind.NEW for outcome in outcomes) == 1


def test_the_holder_of_a_key_is_found_with_its_body_and_for_its_tenant_alone(journal: Journal) -> None:
    journal.accept(request(idempotency_key="k")).result()

    found = [journal.find_key(*asked).result() for asked in (("tenant", "k", "hash"), ("tenant", "k", "other"))]

    assert [(outcome.kind, outcome.request_id) for outcome in found if outcome is not None] == [
        (AcceptKind.EXISTING, "r1"),
        (AcceptKind.BODY_DIFFERS, "r1"),
    ]
    assert journal.find_key("tenant", "another", "hash").result() is None
    assert journal.find_key("another", "k", "hash").result() is None


def test_a_key_answers_with_the_state_of_the_request_that_holds_it(journal: Journal) -> None:
    new = journal.accept(request(idempotency_key="k")).result()
    journal.start_attempt(attempt(1), "w1").result()

    assert new == AcceptOutcome(AcceptKind.NEW, "r1", RequestState.ACCEPTED)
    held = AcceptOutcome(AcceptKind.EXISTING, "r1", RequestState.RUNNING)
    assert journal.accept(request("r2", idempotency_key="k")).result() == held
    assert journal.find_key("tenant", "k", "hash").result() == held
