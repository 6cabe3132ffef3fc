"""Store the webhooks of jobs with their requests, from acceptance until delivery or failure."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from pentimento.domain.jobs import RequestState, WebhookDelivery, WebhookState
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.statements import Statement, among
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
_TOLD = select(
    *_requests.c["request_id", "tenant", "error_reason", "accepted_at", "finished_at"],
    _requests.c.state.label("request_state"),
    *_webhooks.c["url", "try_count", "told_id", "last_id"],
).where(_IS_DUE)
_ENDED_LATER = exists().where(_IS_OF_JOB, _others.c.finished_at >= bindparam("before"))
_OVERDUE = Statement(
    _TOLD.where(_requests.c.finished_at < bindparam("before"), or_(_webhooks.c.last_id == "", ~_ENDED_LATER))
    .where(~among(_requests.c.request_id, "but_ids"))
    .limit(bindparam("limit_count"))
)
_NEXT_AT = Statement(select(func.min(_due_at)).where(_IS_DUE, _due_at > bindparam("after")))
_NOTE_TRY = Statement(update(_webhooks).where(_webhooks.c.request_id == bindparam("id")))
_PUT_FORWARD = Statement(update(_webhooks).where(_IS_PENDING, _webhooks.c.next_at > bindparam("latest")))
_DELIVERY = Statement(
    select(*_webhooks.c["state", "try_count", "error"]).where(
        _webhooks.c.request_id == bindparam("id"), _webhooks.c.told_id == bindparam("told")
    )
)
_ADD = Statement(insert(_webhooks))
_ENDS_OF_JOB = Statement(
    select(_others.c.state, _others.c.finished_at).where(
        _others.c.request_id.between(bindparam("first_id"), bindparam("final_id")), _others.c.finished_at.is_not(None)
    )
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
        wanted: dict[str, Any] = {"now": now, "limit_count": limit_count, "but_tenants": but_tenants}
        for number, (tenant, host) in enumerate(but_hosts):
            wanted |= {
                f"tenant_{number}": tenant,
                f"https_{number}": f"https://{host}/",
                f"http_{number}": f"http://{host}/",
            }
        return self._read(_due(len(but_hosts)), wanted)

    def next_at(self, after: float) -> "Future[float | None]":
        """Return the time of the next webhook that is not due by `after` yet; None without one."""
        return self._reader.submit(lambda connection: _NEXT_AT.scalar(connection, after=after))

    def overdue(self, ended_before: float, limit_count: int, but_ids: Sequence[str] = ()) -> "Future[list[DueWebhook]]":
        """Return up to `limit_count` pending webhooks of jobs that ended before `ended_before`, except those of
        `but_ids`."""
        return self._read(_OVERDUE, {"before": ended_before, "limit_count": limit_count, "but_ids": but_ids})

    @submitted
    def note_try(self, connection: Connection, request_id: str, delivery: WebhookDelivery, next_at: float) -> None:
        """Record the outcome of a try, and the time of the next one if the webhook is still pending."""
        values = {"state": delivery.state.value, "try_count": delivery.try_count, "error": delivery.error}
        _NOTE_TRY.change(connection, id=request_id, next_at=next_at, **values)

    @submitted
    def put_forward(self, connection: Connection, latest: float, next_at: float) -> None:
        """Move tries later than `latest` to `next_at`: a clock that was set back left them there."""
        _PUT_FORWARD.change(connection, latest=latest, next_at=next_at)

    @submitted
    def delivery(self, connection: Connection, request_id: str, told_id: str = "") -> WebhookDelivery | None:
        """Return the delivery of a request's webhook, None if it named none. `told_id`: the job's id, for the first of
        several requests that are one job."""
        row = _DELIVERY.first(connection, id=request_id, told=told_id)
        return WebhookDelivery(WebhookState(row.state), row.try_count, row.error) if row is not None else None

    def _read(self, statement: Statement, wanted: dict[str, Any]) -> "Future[list[DueWebhook]]":
        return self._reader.submit(
            lambda connection: [_due_of(connection, row) for row in statement.rows(connection, **wanted)]
        )


@lru_cache(maxsize=64)
def _due(host_count: int) -> Statement:
    """Return the statement that selects webhooks due by now, but those of that many hosts of a tenant."""
    others = [
        ~and_(
            _requests.c.tenant == bindparam(f"tenant_{number}"),
            or_(_is_below(f"https_{number}"), _is_below(f"http_{number}")),
        )
        for number in range(host_count)
    ]
    now = bindparam("now", type_=_webhooks.c.next_at.type)
    is_now = and_(_webhooks.c.next_at <= now, _due_at <= now, ~among(_requests.c.tenant, "but_tenants"), *others)
    return Statement(_TOLD.where(is_now).order_by(_webhooks.c.next_at).limit(bindparam("limit_count")))


def _is_below(place: str) -> ColumnElement[bool]:
    """Return whether the address begins with the parameter `place`, which ends with a slash."""
    start = bindparam(place, type_=_webhooks.c.url.type)
    # An address may end with its host.
    return func.substr(_webhooks.c.url + "/", 1, func.length(start)) == start


def add_webhook(connection: Connection, request_id: str, webhook: AskedWebhook) -> None:
    """Store the webhook of a request, in the transaction that accepts it."""
    row = {"request_id": request_id, **vars(webhook), "state": WebhookState.PENDING.value, "try_count": 0}
    _ADD.change(connection, **row, next_at=0.0, error="")


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


def _due_of(connection: Connection, row: Any) -> DueWebhook:
    state, reason, finished_at = RequestState(row.request_state), row.error_reason, row.finished_at
    if row.last_id:
        # A further request may have been accepted since the job was due.
        ends = _ENDS_OF_JOB.rows(connection, first_id=row.request_id, final_id=row.last_id)
        finished_at = max(one.finished_at for one in ends)
        # One image makes the job a completed one.
        if any(one.state == RequestState.COMPLETED.value for one in ends):
            state, reason = RequestState.COMPLETED, ""
    return DueWebhook(
        row.request_id, row.tenant, row.url, row.try_count, state, reason, row.accepted_at, finished_at, row.told_id
    )
