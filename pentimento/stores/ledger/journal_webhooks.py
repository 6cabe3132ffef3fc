"""Store the webhooks of jobs with their requests, from acceptance until delivery or failure."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, exists, func, insert, or_, select, update

from pentimento.domain.jobs import WebhookDelivery, WebhookState
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import journal_tables as tables
from pentimento.stores.ledger.writer import GroupCommitWriter, LedgerReader, submitted

_requests = tables.requests
_webhooks = tables.webhooks
_others = tables.requests.alias()
_IS_PENDING = _webhooks.c.state == WebhookState.PENDING.value
_IS_OF_JOB = _others.c.request_id.between(_webhooks.c.request_id, _webhooks.c.last_id)
_OTHER_RUNS = exists().where(_IS_OF_JOB, _others.c.finished_at.is_(None))
_count_there = select(func.count()).where(_IS_OF_JOB).correlate(_webhooks).scalar_subquery()
# Requests of one job are accepted one by one: the first may have ended before the last has its row. A rejected one
# never gets a row; after the deadline no more rows are expected.
_due_at = case(
    (or_(_webhooks.c.last_id == "", _count_there >= _webhooks.c.request_count), _webhooks.c.next_at),
    (_requests.c.deadline_at > _webhooks.c.next_at, _requests.c.deadline_at),
    else_=_webhooks.c.next_at,
)
_IS_DUE = and_(
    _IS_PENDING,
    _webhooks.c.request_id == _requests.c.request_id,
    _requests.c.finished_at.is_not(None),
    or_(_webhooks.c.last_id == "", ~_OTHER_RUNS),
)


@dataclass(frozen=True)
class AskedWebhook:
    """Name the receiver of a request's end. For the first of several requests that are one job: `told_id` is the
    job's id, the requests' ids are that id, a hyphen and a number, `last_id` is the greatest, and there are
    `request_count`; the webhook is due once all have ended. A request that was never accepted delays it until the
    first one's deadline."""

    url: str
    told_id: str = ""
    last_id: str = ""
    request_count: int = 0


@dataclass(frozen=True)
class DueWebhook:
    """Describe a job that has ended and has a webhook to call. Times are seconds since 1970; `try_count`: tries so far.
    `told_id`: the job's id if it has several requests, "" if the request is the job."""

    request_id: str
    tenant: str
    url: str
    try_count: int
    state: RequestState
    error_reason: str
    accepted_at: float
    finished_at: float
    told_id: str = ""

    @property
    def job_id(self) -> str:
        """Return the job's id for its client."""
        return self.told_id or self.request_id


class JournalWebhooks:
    """Read and change the webhooks of a journal. Futures are as the journal's; each call may be repeated. A separate
    thread reads the due ones: an unreachable receiver may leave many."""

    def __init__(self, writer: GroupCommitWriter, reader: LedgerReader) -> None:
        self._submit = writer.submit
        self._reader = reader

    def due(
        self,
        now: float,
        limit_count: int,
        but_tenants: Sequence[str] = (),
        but_hosts: Sequence[tuple[str, str]] = (),
    ) -> "Future[list[DueWebhook]]":
        """Return up to `limit_count` webhooks due by `now`, longest wait first. Skips those of `but_tenants`, and of
        `but_hosts`: a tenant and a host, with its port if the address has one."""
        others = [~and_(_requests.c.tenant == tenant, _is_at(host)) for tenant, host in but_hosts]
        is_now = and_(_webhooks.c.next_at <= now, _due_at <= now, _requests.c.tenant.not_in(but_tenants), *others)
        statement = _select_due().where(is_now).order_by(_webhooks.c.next_at).limit(limit_count)
        return self._reader.submit(
            lambda connection: [_due_of(connection, row) for row in connection.execute(statement)]
        )

    def next_at(self, after: float) -> "Future[float | None]":
        """Return the time of the next webhook that is not due by `after` yet; None without one."""
        statement = select(func.min(_due_at)).where(_IS_DUE, _due_at > after)
        return self._reader.submit(lambda connection: connection.execute(statement).scalar_one())

    def overdue(self, ended_before: float, limit_count: int, but_ids: Sequence[str] = ()) -> "Future[list[DueWebhook]]":
        """Return up to `limit_count` pending webhooks of jobs that ended before `ended_before`, except those of
        `but_ids`."""
        other_ended_later = exists().where(_IS_OF_JOB, _others.c.finished_at >= ended_before)
        have_ended = or_(_webhooks.c.last_id == "", ~other_ended_later)
        is_overdue = and_(_requests.c.finished_at < ended_before, have_ended, _requests.c.request_id.not_in(but_ids))
        statement = _select_due().where(is_overdue).limit(limit_count)
        return self._reader.submit(
            lambda connection: [_due_of(connection, row) for row in connection.execute(statement)]
        )

    @submitted
    def note_try(self, connection: Connection, request_id: str, delivery: WebhookDelivery, next_at: float) -> None:
        """Record the outcome of a try, and the time of the next one if the webhook is still pending."""
        values = {
            "state": delivery.state.value,
            "try_count": delivery.try_count,
            "error": delivery.error,
            "next_at": next_at,
        }
        statement = update(_webhooks).where(_webhooks.c.request_id == request_id).values(**values)
        connection.execute(statement)

    @submitted
    def put_forward(self, connection: Connection, latest: float, next_at: float) -> None:
        """Move tries later than `latest` to `next_at`: a clock that was set back left them there."""
        statement = update(_webhooks).where(_IS_PENDING, _webhooks.c.next_at > latest).values(next_at=next_at)
        connection.execute(statement)

    def delivery(self, request_id: str, told_id: str = "") -> "Future[WebhookDelivery | None]":
        """Return the delivery of a request's webhook, None if it named none. `told_id`: the job's id, for the first of
        several requests that are one job."""
        statement = select(_webhooks).where(_webhooks.c.request_id == request_id, _webhooks.c.told_id == told_id)
        return self._submit(lambda connection: _delivery_of(connection.execute(statement).one_or_none()))


def add_webhook(connection: Connection, request_id: str, webhook: AskedWebhook) -> None:
    """Store the webhook of a request, in the transaction that accepts it."""
    row = {"request_id": request_id, **vars(webhook), "state": WebhookState.PENDING.value, "try_count": 0}
    connection.execute(insert(_webhooks), {**row, "next_at": 0.0, "error": ""})


def but_untold(statement: Select[Any]) -> Select[Any]:
    """Exclude requests with a pending webhook, their own or that of their job."""
    # No NOT IN: PostgreSQL compares each request with all webhooks if those outgrow its memory for one hash table.
    of_one = exists().where(_webhooks.c.request_id == _requests.c.request_id, _IS_PENDING)
    # Compared for equality, and selected once: a range would be searched in every request, or for each one.
    first_part = (_webhooks.c.told_id + "-").label("first_part")
    of_several = select(first_part).where(_IS_PENDING, _webhooks.c.last_id != "").distinct().subquery()
    without_number = func.rtrim(_requests.c.request_id, "0123456789")
    joined = statement.outerjoin(of_several, of_several.c.first_part == without_number)
    return joined.where(~of_one, of_several.c.first_part.is_(None))


def _is_at(host: str) -> ColumnElement[bool]:
    # An address may end with its host.
    address = _webhooks.c.url + "/"
    return or_(*(address.startswith(f"{scheme}://{host}/", autoescape=True) for scheme in ("https", "http")))


def _select_due() -> Select[Any]:
    columns = _requests.c
    told = (columns.request_id, columns.tenant, columns.error_reason, columns.accepted_at, columns.finished_at)
    hook = (_webhooks.c.url, _webhooks.c.try_count, _webhooks.c.told_id, _webhooks.c.last_id)
    return select(*told, columns.state.label("request_state"), *hook).where(_IS_DUE)


def _due_of(connection: Connection, row: Row[Any]) -> DueWebhook:
    state, reason, finished_at = RequestState(row.request_state), row.error_reason, row.finished_at
    if row.last_id:
        columns = (_others.c.state, _others.c.finished_at)
        of_job = _others.c.request_id.between(row.request_id, row.last_id)
        # A further request may have been accepted since the job was due.
        ends = connection.execute(select(*columns).where(of_job, _others.c.finished_at.is_not(None))).all()
        finished_at = max(one.finished_at for one in ends)
        # One image makes the job a completed one.
        if any(one.state == RequestState.COMPLETED.value for one in ends):
            state, reason = RequestState.COMPLETED, ""
    return DueWebhook(
        row.request_id, row.tenant, row.url, row.try_count, state, reason, row.accepted_at, finished_at, row.told_id
    )


def _delivery_of(row: Row[Any] | None) -> WebhookDelivery | None:
    return WebhookDelivery(WebhookState(row.state), row.try_count, row.error) if row is not None else None
