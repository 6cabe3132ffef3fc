"""The journal's promises, on SQLite and on PostgreSQL."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.requests import RequestState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.records import (
    AcceptedRequest,
    AcceptKind,
    AttemptRecord,
    JournalledRequest,
)
from tests.contract.stores.journal_records import NOW_S, attempt, request, result


def test_an_accepted_request_survives_its_process(ledger_url: str) -> None:
    journal = open_journal(ledger_url)
    journal.accept(request(idempotency_key="k", frontdoor_id="f", frontdoor_epoch=7)).result()
    journal.close()

    journal = open_journal(ledger_url)
    found = journal.get("r1", "tenant").result()
    journal.close()

    assert found is not None
    assert found.request == request(idempotency_key="k", frontdoor_id="f", frontdoor_epoch=7)
    assert found.state is RequestState.ACCEPTED


def test_the_first_route_stays(journal: Journal) -> None:
    journal.accept(request()).result()

    routes = [journal.record_route("r1", route).result() for route in (b"first\x00", b"second")]

    assert routes == [b"first\x00", b"first\x00"]


def test_a_route_of_an_unknown_request_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidArgument):
        journal.record_route("unknown", b"route").result()


def test_an_attempt_starts_once_and_only_under_a_newer_token(journal: Journal) -> None:
    journal.accept(request()).result()

    assert journal.start_attempt(attempt(5), "w1").result()
    assert journal.start_attempt(attempt(5), "w1").result(), "the caller may not have heard the answer"
    assert not journal.start_attempt(attempt(5), "w2").result()
    assert not journal.start_attempt(attempt(4), "w1").result()
    assert journal.start_attempt(attempt(6, number=2), "w2").result()

    found = journal.get("r1", "tenant").result()
    assert found is not None
    assert found.state is RequestState.RUNNING
    assert found.attempt_count == 2
    assert found.newest_attempt is not None
    assert found.newest_attempt.attempt == attempt(6, number=2)
    assert found.newest_attempt.worker_id == "w2"


def test_route_and_first_attempt_are_in_together_and_may_be_repeated(journal: Journal) -> None:
    journal.accept(request()).result()

    told = [journal.route_and_start(attempt(5), "w1", route, 1).result() for route in (b"first", b"first", b"other")]
    late = journal.route_and_start(attempt(4), "w2", b"late", 0).result()

    assert told == [(b"first", True)] * 3
    assert late == (b"first", False)
    found = journal.get("r1", "tenant").result()
    assert found is not None and found.newest_attempt is not None
    assert (found.route, found.cascade_stage, found.attempt_count) == (b"first", 1, 1)
    assert found.newest_attempt.cascade_stage == 1


def test_neither_route_nor_attempt_of_an_unknown_request_is_in(journal: Journal) -> None:
    with pytest.raises(InvalidArgument):
        journal.route_and_start(attempt(1, "unknown"), "w1", b"route").result()

    assert journal.get("unknown", "tenant").result() is None


def test_attempts_of_unknown_requests_do_not_start(journal: Journal) -> None:
    assert not journal.start_attempt(attempt(1, "unknown"), "w1").result()


def test_only_the_newest_token_commits(journal: Journal) -> None:
    journal.accept(request()).result()
    journal.start_attempt(attempt(1), "w1").result()
    journal.start_attempt(attempt(2, number=2), "w2").result()

    assert not journal.commit_result(attempt(1), result("old")).result()
    assert journal.commit_result(attempt(2, number=2), result("new")).result()

    found = journal.get("r1", "tenant").result()
    assert found is not None
    assert found.state is RequestState.COMPLETED
    assert found.result == result("new")
    assert found.finished_at == 105.0


def test_a_result_is_committed_once(journal: Journal) -> None:
    journal.accept(request()).result()
    journal.start_attempt(attempt(1), "w1").result()

    assert journal.commit_result(attempt(1), result("a")).result()
    assert journal.commit_result(attempt(1), result("a")).result(), "the caller may not have heard the answer"
    assert not journal.commit_result(attempt(1), result("b")).result()
    assert not journal.start_attempt(attempt(2), "w1").result()
    assert not journal.finish("r1", RequestState.FAILED, "X", "late").result()


@pytest.mark.parametrize("state", [RequestState.FAILED, RequestState.CANCELLED, RequestState.EXPIRED])
def test_an_end_is_reached_once(journal: Journal, state: RequestState) -> None:
    journal.accept(request()).result()
    journal.start_attempt(attempt(1), "w1").result()

    assert journal.finish("r1", state, "REASON", "words").result()
    assert not journal.finish("r1", RequestState.FAILED, "OTHER", "late").result()
    assert not journal.commit_result(attempt(1), result()).result()

    found = journal.get("r1", "tenant").result()
    assert found is not None
    assert (found.state, found.error_reason, found.error_message) == (state, "REASON", "words")
    assert found.result is None


@pytest.mark.parametrize("state", [RequestState.RUNNING, RequestState.COMPLETED])
def test_finish_takes_ends_without_a_result_only(journal: Journal, state: RequestState) -> None:
    with pytest.raises(InvalidArgument):
        journal.finish("r1", state, "", "")


def test_finishing_an_unknown_request_does_nothing(journal: Journal) -> None:
    assert not journal.finish("unknown", RequestState.FAILED, "X", "").result()


def test_another_tenant_finds_nothing(journal: Journal) -> None:
    journal.accept(request()).result()

    assert journal.get("r1", "other").result() is None


def test_unfinished_requests_come_oldest_first_with_their_attempt_and_route(journal: Journal) -> None:
    for number, accepted_at in ((1, 30.0), (2, 10.0), (3, 20.0), (4, 40.0)):
        journal.accept(request(f"r{number}", accepted_at=accepted_at)).result()
    journal.record_route("r2", b"route").result()
    journal.start_attempt(attempt(9, "r2"), "w1").result()
    journal.finish("r3", RequestState.CANCELLED, "", "").result()

    found = journal.unfinished().result()

    assert [record.request.request_id for record in found] == ["r2", "r1", "r4"]
    assert found[0].route == b"route"
    assert found[0].newest_attempt is not None
    assert found[0].newest_attempt.attempt.fencing_token == 9
    assert found[1].newest_attempt is None


def test_finished_requests_are_forgotten_with_their_keys(journal: Journal) -> None:
    journal.accept(request("r1", idempotency_key="k")).result()
    journal.start_attempt(attempt(1), "w1").result()
    journal.commit_result(attempt(1), result()).result()
    journal.accept(request("r2")).result()

    assert journal.forget_finished(finished_before=105.0, limit_count=10).result() == []
    forgotten = journal.forget_finished(finished_before=105.1, limit_count=10).result()

    assert [record.result for record in forgotten] == [result()]
    assert journal.get("r1", "tenant").result() is None
    assert journal.get("r2", "tenant").result() is not None
    assert journal.accept(request("r3", idempotency_key="k")).result().kind is AcceptKind.NEW


def test_of_a_tenant_those_alone_are_forgotten_that_ended_after_a_time(ledger_url: str) -> None:
    clock = SetClock(50.0)
    with closing(open_journal(ledger_url, clock)) as journal:
        for request_id, ended_at in (("r1", 50.0), ("r2", 60.0), ("r3", 70.0)):
            clock.wall_s = ended_at
            journal.accept(request(request_id)).result()
            journal.finish(request_id, RequestState.CANCELLED, "", "").result()

        forgotten = journal.forget_finished(math.inf, 10, "tenant", finished_after=60.0).result()
        known = journal.known(("r1", "r2", "r3", "r4"), "tenant").result()
        of_another = journal.known(("r1",), "another").result()

    assert [record.request.request_id for record in forgotten] == ["r3"]
    assert (known, of_another) == ({"r1", "r2"}, frozenset())


def test_the_last_plan_is_kept(journal: Journal) -> None:
    assert journal.load_plan().result() is None

    journal.save_plan(b"\x00first").result()
    journal.save_plan(b"\x00second").result()

    assert journal.load_plan().result() == b"\x00second"


def test_a_value_that_cannot_be_stored_is_refused_and_harms_no_neighbour(journal: Journal) -> None:
    bad = journal.accept(request("surrogate-\ud800"))
    good = journal.accept(request("r1"))
    too_large = journal.start_attempt(attempt(2**70), "w1")

    assert good.result().kind is AcceptKind.NEW
    for refused in (bad, too_large):
        with pytest.raises(InvalidArgument):
            refused.result()
    assert journal.get("r1", "tenant").result() is not None


def test_what_was_queued_is_committed_on_close(ledger_url: str) -> None:
    journal = open_journal(ledger_url)
    futures = [journal.accept(request(f"r{number}")) for number in range(100)]
    journal.close()

    assert all(future.result().kind is AcceptKind.NEW for future in futures)
    with pytest.raises(StoreUnavailable):
        journal.accept(request())


def test_a_route_is_pinned_for_each_stage_of_a_cascade(journal: Journal) -> None:
    journal.accept(request()).result()
    journal.record_route("r1", b"light").result()

    assert journal.record_route("r1", b"heavy", 1).result() == b"heavy"
    assert journal.record_route("r1", b"heavy again", 1).result() == b"heavy"
    assert journal.record_route("r1", b"late", 0).result() == b"heavy"


def test_an_attempt_knows_its_stage(journal: Journal) -> None:
    journal.accept(request()).result()
    journal.record_route("r1", b"heavy", 1).result()

    journal.start_attempt(attempt(1), "w1", 0).result()

    (record,) = journal.unfinished().result()
    assert record.newest_attempt is not None
    assert (record.cascade_stage, record.newest_attempt.cascade_stage) == (1, 0)


def test_an_attempt_knows_what_it_started_from_of_the_stage_before_and_a_further_one_has_nothing_of_it(
    journal: Journal,
) -> None:
    journal.accept(request()).result()
    told = []

    for start in (
        lambda: journal.route_and_start(attempt(1), "w1", b"heavy", 1, b"light"),
        lambda: journal.start_attempt(attempt(2, number=2), "w1", 1, b"light"),
        lambda: journal.start_attempt(attempt(3, number=3), "w1", 1),
    ):
        start().result()
        (record,) = journal.unfinished().result()
        assert record.newest_attempt is not None
        told.append(record.newest_attempt.handed_picture)

    assert told == [b"light", b"light", b""]


def test_a_request_is_known_with_all_that_was_ever_written_of_it(ledger_url: str) -> None:
    accepted = request(
        idempotency_key="k", deadline_at=None, frontdoor_id="frontdoor-1", frontdoor_epoch=1, body_format=3
    )
    first = attempt(5)
    with closing(open_journal(ledger_url, SetClock(NOW_S))) as journal:
        told = []
        for change in (
            lambda: journal.accept(accepted),
            lambda: journal.record_route("r1", b"route", 2),
            lambda: journal.start_attempt(first, "w1"),
            lambda: journal.finish("r1", RequestState.FAILED, "REASON", "words"),
        ):
            change().result()
            told.append(journal.get("r1", "tenant").result())

    new = JournalledRequest(
        accepted,
        RequestState.ACCEPTED,
        route=None,
        newest_attempt=None,
        attempt_count=0,
        result=None,
        error_reason="",
        error_message="",
        finished_at=None,
        cascade_stage=0,
    )
    routed = replace(new, route=b"route", cascade_stage=2)
    running = replace(
        routed,
        state=RequestState.RUNNING,
        newest_attempt=AttemptRecord(first, "w1", NOW_S, cascade_stage=0),
        attempt_count=1,
    )
    ended = replace(
        running,
        request=replace(accepted, body=b""),
        state=RequestState.FAILED,
        error_reason="REASON",
        error_message="words",
        finished_at=NOW_S,
    )
    assert told == [new, routed, running, ended]


def test_what_bytes_hold_is_not_printed() -> None:
    attempt_record = AttemptRecord(attempt(1), "w1", 0.0, 0)
    record = JournalledRequest(
        request(body=b"secret"),
        RequestState.COMPLETED,
        b"secret",
        attempt_record,
        1,
        replace(result(), provenance=b"secret"),
        "",
        "",
        1.0,
        0,
    )

    assert "secret" not in repr(record)


@pytest.mark.parametrize(
    ("misuse", "field"),
    [
        (lambda journal: journal.record_route("unknown", b"route").result(), "request_id"),
        (lambda journal: journal.finish("r1", RequestState.RUNNING, "", ""), "state"),
    ],
)
def test_a_wrong_argument_is_named(journal: Journal, misuse: Callable[[Journal], object], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        misuse(journal)

    assert [violation.field for violation in refused.value.violations] == [field]


def test_what_a_request_does_not_bring_is_nothing() -> None:
    brought = AcceptedRequest("r1", "tenant", b"body", "hash", 1.0)

    assert brought == AcceptedRequest("r1", "tenant", b"body", "hash", 1.0, "", None, "", 0, 0)
