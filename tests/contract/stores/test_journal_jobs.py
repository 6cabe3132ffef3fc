"""Test jobs in the journal, on SQLite and PostgreSQL: lists by tenant, and webhooks due after their ends."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.jobs import RequestState, WebhookDelivery, WebhookState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.listing import PagePlace
from pentimento.stores.ledger.journal.webhooks import AskedWebhook, DueWebhook
from tests.support.journals import a_result, an_accepted_request
from tests.support.values import an_attempt

NONE: frozenset[RequestState] = frozenset()
HOOK = "https://hooks.example.com/done"


@pytest.fixture
def journal(ledger_url: str) -> Iterator[Journal]:
    with closing(open_journal(ledger_url, SetClock(500.0))) as opened:
        yield opened


def accept(
    journal: Journal, request_id: str, at: float, webhook: AskedWebhook | None = None, deadline_at: float | None = None
) -> None:
    record = an_accepted_request(request_id, tenant="acme", accepted_at=at, detached=True, deadline_at=deadline_at)
    journal.accept(record, webhook).result()


def test_page_after_page_has_neither_gap_nor_repetition(journal: Journal) -> None:
    """Some requests have the same time, and newer ones arrive between pages."""
    for number in range(7):
        accept(journal, f"r{number}", 10.0 + number // 3)

    seen: list[str] = []
    behind = None
    while page := journal.listing.page("acme", NONE, False, 2, behind).result():
        seen += [record.request.request_id for record in page]
        last = page[-1].request
        behind = PagePlace.of_token(PagePlace(last.accepted_at, last.request_id).to_token())
        accept(journal, f"newer{len(seen)}", 100.0)

    assert seen == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]


def test_page_place_of_invented_token_is_refused() -> None:
    for token in ("x", "!!!!", "AAAA", "A" * 300, "f_gAAAAAAAByMQ", "QCQAAAAAAAD_", "QCQAAAAAAABy MQ"):
        with pytest.raises(InvalidArgument, match="page_token"):
            PagePlace.of_token(token)


def test_due_webhook_of_job_once_it_has_ended(journal: Journal) -> None:
    accept(journal, "job", 1.5, webhook=AskedWebhook(HOOK))
    before = (journal.webhooks.due(9e9, 5).result(), journal.webhooks.next_at(-1.0).result())

    journal.finish("job", RequestState.FAILED, "WORKER_LOST", "").result()

    due = DueWebhook("job", "acme", HOOK, 0, RequestState.FAILED, "WORKER_LOST", 1.5, 500.0)
    assert before == ([], None)
    assert journal.webhooks.due(500.0, 5).result() == [due]
    assert journal.webhooks.next_at(-1.0).result() == 0.0


def test_note_try_schedules_pending_webhook_only(ledger_url: str) -> None:
    with closing(open_journal(ledger_url)) as journal:
        for request_id in ("again", "told"):
            accept(journal, request_id, 1.0, webhook=AskedWebhook(HOOK))
            journal.finish(request_id, RequestState.CANCELLED, "", "").result()
        again = WebhookDelivery(WebhookState.PENDING, 1, "status 503")
        journal.webhooks.note_try("again", again, 700.0).result()
        journal.webhooks.note_try("told", WebhookDelivery(WebhookState.DELIVERED, 1), 0.0).result()

    with closing(open_journal(ledger_url)) as journal:
        assert journal.webhooks.due(699.0, 5).result() == []
        assert [(due.request_id, due.try_count) for due in journal.webhooks.due(700.0, 5).result()] == [("again", 1)]
        assert journal.webhooks.next_at(699.0).result() == 700.0
        assert journal.webhooks.next_at(700.0).result() is None
        assert journal.webhooks.delivery("again").result() == again
        assert journal.webhooks.delivery("nobody's").result() is None


def test_forget_finished_keeps_job_with_pending_webhook(journal: Journal) -> None:
    accept(journal, "job", 1.0, webhook=AskedWebhook(HOOK))
    journal.finish("job", RequestState.CANCELLED, "", "").result()

    kept = journal.forget_finished(9e9, 5).result()
    journal.webhooks.note_try("job", WebhookDelivery(WebhookState.FAILED, 8, "status 503"), 0.0).result()
    forgotten = journal.forget_finished(9e9, 5).result()

    assert (kept, [record.request.request_id for record in forgotten]) == ([], ["job"])
    assert journal.webhooks.delivery("job").result() is None


def test_accept_of_held_key_adds_no_webhook(journal: Journal) -> None:
    for request_id in ("first", "second"):
        record = an_accepted_request(request_id, tenant="acme", idempotency_key="key")
        journal.accept(record, AskedWebhook(HOOK)).result()
        journal.finish("first", RequestState.CANCELLED, "", "").result()

    assert [due.request_id for due in journal.webhooks.due(9e9, 5).result()] == ["first"]


def test_late_commit_of_same_attempt_keeps_the_first_object(journal: Journal) -> None:
    """Two frontdoors receive the image of one attempt, and each stores it."""
    accept(journal, "r1", 1.0)
    attempt, first = an_attempt("r1", tenant="acme"), a_result()
    journal.start_attempt(attempt, "w1").result()
    other = replace(first, image=replace(first.image, key="results/other"))

    outcomes = [journal.commit_result(attempt, result).result() for result in (first, other, first)]

    record = journal.get("r1", "acme").result()
    assert record is not None
    assert outcomes == [True, False, True]
    assert record.result is not None
    assert record.result.image == first.image


OF_SEVERAL = AskedWebhook(HOOK, "p3-a", "p3-a-2", 3)


def accept_several(journal: Journal) -> None:
    """Accept three images of one job with another job's image among them."""
    for index in range(3):
        accept(journal, f"p3-a-{index}", 1.0, webhook=OF_SEVERAL if index == 0 else None)
    accept(journal, "p3-b-0", 1.0)


def complete(journal: Journal, request_id: str) -> None:
    attempt = an_attempt(request_id, tenant="acme")
    journal.start_attempt(attempt, "w1").result()
    assert journal.commit_result(attempt, a_result(completed_at=500.0)).result()


@pytest.mark.parametrize(
    ("second", "told"),
    [(RequestState.EXPIRED, RequestState.FAILED), (RequestState.COMPLETED, RequestState.COMPLETED)],
)
def test_due_webhook_of_several_once_all_have_ended(journal: Journal, second: RequestState, told: RequestState) -> None:
    accept_several(journal)
    journal.finish("p3-a-0", RequestState.FAILED, "WORKER_LOST", "").result()
    if second is RequestState.COMPLETED:
        complete(journal, "p3-a-1")
    else:
        journal.finish("p3-a-1", second, "DEADLINE", "").result()
    before = (journal.webhooks.due(9e9, 5).result(), journal.webhooks.next_at(-1.0).result())

    journal.finish("p3-a-2", RequestState.CANCELLED, "", "").result()

    (due,) = journal.webhooks.due(9e9, 5).result()
    assert before == ([], None)
    assert (due.request_id, due.job_id, due.state) == ("p3-a-0", "p3-a", told)
    assert (due.error_reason, due.finished_at) == ("" if told is RequestState.COMPLETED else "WORKER_LOST", 500.0)


def due_ids(journal: Journal, now: float) -> list[str]:
    return [due.job_id for due in journal.webhooks.due(now, 5).result()]


def test_due_webhook_of_several_waits_for_last_accept(journal: Journal) -> None:
    accept(journal, "p3-a-0", 1.0, webhook=OF_SEVERAL, deadline_at=600.0)
    accept(journal, "p3-a-1", 1.0)
    for request_id in ("p3-a-0", "p3-a-1"):
        journal.finish(request_id, RequestState.FAILED, "WORKER_LOST", "").result()
    too_early = due_ids(journal, 599.0)

    accept(journal, "p3-a-2", 1.0)
    while_it_runs = (due_ids(journal, 9e9), journal.webhooks.next_at(-1.0).result())
    complete(journal, "p3-a-2")

    (due,) = journal.webhooks.due(500.0, 5).result()
    assert (too_early, while_it_runs) == ([], ([], None))
    assert (due.job_id, due.state) == ("p3-a", RequestState.COMPLETED)


def test_due_webhook_waits_for_unaccepted_image_until_deadline(journal: Journal) -> None:
    accept(journal, "p3-a-0", 1.0, webhook=OF_SEVERAL, deadline_at=600.0)
    journal.finish("p3-a-0", RequestState.FAILED, "WORKER_LOST", "").result()

    assert journal.webhooks.next_at(500.0).result() == 600.0
    assert (due_ids(journal, 599.0), due_ids(journal, 600.0)) == ([], ["p3-a"])


def test_put_forward_changes_only_pending_tries_beyond_latest(journal: Journal) -> None:
    pending, told = WebhookDelivery(WebhookState.PENDING, 1, "status 503"), WebhookDelivery(WebhookState.DELIVERED, 1)
    for request_id, delivery, next_at in (("soon", pending, 700.0), ("far", pending, 701.0), ("told", told, 9e9)):
        accept(journal, request_id, 1.0, webhook=AskedWebhook(HOOK))
        journal.finish(request_id, RequestState.CANCELLED, "", "").result()
        journal.webhooks.note_try(request_id, delivery, next_at).result()

    journal.webhooks.put_forward(latest=700.0, next_at=500.0).result()

    assert due_ids(journal, 500.0) == ["far"]
    assert journal.webhooks.next_at(500.0).result() == 700.0
    assert journal.webhooks.delivery("far").result() == pending


def test_forget_finished_keeps_several_with_pending_webhook(journal: Journal) -> None:
    accept_several(journal)
    for request_id in ("p3-a-0", "p3-a-1", "p3-a-2", "p3-b-0"):
        journal.finish(request_id, RequestState.CANCELLED, "", "").result()

    others = journal.forget_finished(9e9, 5).result()
    told = WebhookDelivery(WebhookState.DELIVERED, 1)
    journal.webhooks.note_try("p3-a-0", told, 0.0).result()

    assert [record.request.request_id for record in others] == ["p3-b-0"]
    assert journal.webhooks.delivery("p3-a-0", "p3-a").result() == told
    assert journal.webhooks.delivery("p3-a-0").result() is None
    assert len(journal.forget_finished(9e9, 5).result()) == 3


def test_overdue_webhooks_are_of_jobs_that_ended_before(ledger_url: str) -> None:
    clock = SetClock(500.0)
    with closing(open_journal(ledger_url, clock)) as journal:
        accept_several(journal)
        for request_id, hook in (("early", AskedWebhook(HOOK)), ("called", AskedWebhook(HOOK)), ("untold", None)):
            accept(journal, request_id, 1.0, webhook=hook)
        for request_id in ("early", "called", "untold", "p3-a-0", "p3-a-1"):
            journal.finish(request_id, RequestState.CANCELLED, "", "").result()
        clock.wall_s = 600.0
        journal.finish("p3-a-2", RequestState.CANCELLED, "", "").result()

        found = {at: journal.webhooks.overdue(at, 5, ["called"]).result() for at in (500.0, 600.0, 601.0)}

    assert {at: sorted(one.request_id for one in overdue) for at, overdue in found.items()} == {
        500.0: [],
        600.0: ["early"],
        601.0: ["early", "p3-a-0"],
    }


def test_due_webhooks_leave_out_named_tenants_and_hosts(journal: Journal) -> None:
    urls = {
        "plain": "http://hooks.example.com/done",
        "bare": "https://hooks.example.com",
        "port": "https://hooks.example.com:8443/done",
        "below": "https://a.hooks.example.com/done",
        "quoted": "https://other.example.com/?to=https://hooks.example.com/",
        "underscore": "https://a_b.test/told",
        "no pattern": "https://axb.test/told",
    }
    for number, (request_id, url) in enumerate(urls.items()):
        accept(journal, request_id, float(number), webhook=AskedWebhook(url))
        journal.finish(request_id, RequestState.CANCELLED, "", "").result()

    def due_but(tenants: Sequence[str], *hosts: tuple[str, str], limit: int = 10) -> list[str]:
        return [one.request_id for one in journal.webhooks.due(600.0, limit, tenants, hosts).result()]

    assert set(due_but([], ("acme", "hooks.example.com"))) == urls.keys() - {"plain", "bare"}
    assert set(due_but([], ("acme", "a_b.test"))) == urls.keys() - {"underscore"}
    assert len(due_but([], ("acme", "hooks.example.com"), limit=2)) == 2
    assert len(due_but([], ("other", "hooks.example.com"))) == len(due_but(["other"])) == 7
    assert due_but(["acme"]) == []
