"""Who is to be told that a job has ended: kept with the request, from its acceptance until that is done or given up."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, and_, func, insert, select, update

from pentimento.domain.jobs import WebhookDelivery, WebhookState
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import journal_tables as tables
from pentimento.stores.ledger.writer import GroupCommitWriter

T = TypeVar("T")

_requests = tables.requests
_webhooks = tables.webhooks
_IS_DUE = and_(
    _webhooks.c.state == WebhookState.PENDING.value,
    _webhooks.c.request_id == _requests.c.request_id,
    _requests.c.finished_at.is_not(None),
)


@dataclass(frozen=True)
class DueWebhook:
    """A job that has ended and whose webhook is to be called. Times are seconds since 1970; `try_count` is of tries so
    far."""

    request_id: str
    tenant: str
    url: str
    try_count: int
    state: RequestState
    error_reason: str
    accepted_at: float
    finished_at: float


class JournalWebhooks:
    """The webhooks of a journal. Futures are as the journal's; each call may be repeated."""

    def __init__(self, writer: GroupCommitWriter) -> None:
        self._writer = writer

    def due(self, now: float, limit_count: int) -> "Future[list[DueWebhook]]":
        """Return up to so many that are to be called by that time, those first that wait longest."""
        statement = _select_due().where(_webhooks.c.next_at <= now).order_by(_webhooks.c.next_at).limit(limit_count)
        return self._submit(lambda connection: [_due_of(row) for row in connection.execute(statement)])

    def next_at(self, after: float) -> "Future[float | None]":
        """Return when the first one is to be called that is not due by that time yet; None where there is none."""
        statement = select(func.min(_webhooks.c.next_at)).where(_IS_DUE, _webhooks.c.next_at > after)
        return self._submit(lambda connection: connection.execute(statement).scalar_one())

    def note_try(self, request_id: str, delivery: WebhookDelivery, next_at: float) -> "Future[None]":
        """Note what came of a try, and when the next one is to be made where it is still pending."""
        values = {
            "state": delivery.state.value,
            "try_count": delivery.try_count,
            "error": delivery.error,
            "next_at": next_at,
        }
        statement = update(_webhooks).where(_webhooks.c.request_id == request_id).values(**values)
        return self._submit(lambda connection: _nothing(connection.execute(statement)))

    def delivery(self, request_id: str) -> "Future[WebhookDelivery | None]":
        """Return what became of a request's webhook; None where it named none."""
        statement = select(_webhooks).where(_webhooks.c.request_id == request_id)
        return self._submit(lambda connection: _delivery_of(connection.execute(statement).one_or_none()))

    def _submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        return self._writer.submit(work)


def add_webhook(connection: Connection, request_id: str, url: str) -> None:
    """Keep the address that a request named, in the transaction that accepts it."""
    row = {"request_id": request_id, "url": url, "state": WebhookState.PENDING.value, "try_count": 0}
    connection.execute(insert(_webhooks), {**row, "next_at": 0.0, "error": ""})


def untold_requests() -> Select[tuple[str]]:
    """Select the ids of requests whose webhook is still to be called."""
    return select(_webhooks.c.request_id).where(_webhooks.c.state == WebhookState.PENDING.value)


def _select_due() -> Select[Any]:
    columns = _requests.c
    told = (columns.request_id, columns.tenant, columns.error_reason, columns.accepted_at, columns.finished_at)
    ended = columns.state.label("request_state")
    return select(*told, ended, _webhooks.c.url, _webhooks.c.try_count).where(_IS_DUE)


def _due_of(row: Row[Any]) -> DueWebhook:
    return DueWebhook(
        row.request_id,
        row.tenant,
        row.url,
        row.try_count,
        RequestState(row.request_state),
        row.error_reason,
        row.accepted_at,
        row.finished_at,
    )


def _delivery_of(row: Row[Any] | None) -> WebhookDelivery | None:
    return WebhookDelivery(WebhookState(row.state), row.try_count, row.error) if row is not None else None


def _nothing(_result: object) -> None:
    return
