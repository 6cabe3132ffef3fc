"""Keep the frontdoor's journal: accepted requests, their routes, their attempts, their results.

Each change is one statement with its condition in the WHERE clause, so that it stays right when two frontdoors (an
active one and a standby, or one that was stopped and woke up) write to the same ledger.
"""

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Column, Connection, Engine, Select, and_, bindparam, case, delete, insert, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from pentimento.domain.clock import Clock, SteadyClock, SystemClock, boot_s
from pentimento.domain.epochs import epoch_at
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import journal_tables as tables
from pentimento.stores.ledger.database import insert_unless_present_in, open_engine, typed_errors
from pentimento.stores.ledger.epoch_ledger import EpochLedger, superseded
from pentimento.stores.ledger.journal_listing import JournalListing
from pentimento.stores.ledger.journal_objects import JournalObjects
from pentimento.stores.ledger.journal_pins import JournalPins, is_pinned
from pentimento.stores.ledger.journal_rows import (
    request_of_row,
    row_of_attempt,
    row_of_request,
    select_requests,
    values_of_result,
)
from pentimento.stores.ledger.journal_time import JournalTime
from pentimento.stores.ledger.journal_webhooks import AskedWebhook, JournalWebhooks, add_webhook, but_untold
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.records import AcceptedRequest, AcceptKind, AcceptOutcome, JournalledRequest, ResultRecord
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.tenant_ledger import TenantLedger, migrate_tenants
from pentimento.stores.ledger.writer import GroupCommitWriter, LedgerReader, followed_by, submitted

_requests = tables.requests
_epoch = tables.epoch
_IS_OPEN = _requests.c.finished_at.is_(None)
_IS_IT = _requests.c.request_id == bindparam("id")
# Statements of every request are compiled once: to build a statement takes longer than to run it.
_NEWEST_EPOCH = Statement(lambda _: select(_epoch.c.epoch).with_for_update(read=True))
_ADD_REQUEST = Statement(lambda dialect: insert_unless_present_in(dialect, _requests))
_MAY_PIN_ROUTE = or_(_requests.c.route.is_(None), _requests.c.cascade_stage < bindparam("stage"))
_PIN_ROUTE = Statement(lambda _: update(_requests).where(_IS_IT, _MAY_PIN_ROUTE))
_PINNED_ROUTE = select(_requests.c.route).where(_IS_IT)
_IS_NEWER = and_(_requests.c.newest_token < bindparam("token"), _requests.c.newest_epoch <= bindparam("epoch"))
_START_ATTEMPT = Statement(
    lambda _: update(_requests).where(_IS_IT, _IS_OPEN, _IS_NEWER).values(attempt_count=_requests.c.attempt_count + 1)
)
_ADD_ATTEMPT = Statement(lambda _: insert(tables.attempts))
_IS_REPEATED = and_(_requests.c.state == RequestState.COMPLETED.value, _requests.c.image_digest == bindparam("digest"))
_MAY_COMMIT = and_(_IS_IT, _requests.c.newest_token == bindparam("token"), or_(_IS_OPEN, _IS_REPEATED))
_COMMIT_RESULT = Statement(lambda _: update(_requests).where(_MAY_COMMIT))
_OF_HOLDER: tuple[Column[Any], ...] = (
    _requests.c.request_id,
    _requests.c.tenant,
    _requests.c.body_hash,
    _requests.c.state,
)
_IS_OF_KEY = (_requests.c.tenant == bindparam("of_tenant"), _requests.c.idempotency_key == bindparam("key"))
_HOLDER_OF_KEY = Statement(lambda _: select(*_OF_HOLDER).where(*_IS_OF_KEY))
_HOLDER_OF_ID = Statement(lambda _: select(*_OF_HOLDER).where(_IS_IT))
_FINISH = Statement(lambda _: update(_requests).where(_IS_IT, _IS_OPEN))


def open_journal(url: str, clock: Clock | None = None) -> "Journal":
    """Connect to the journal at `url` (as in `open_engine`), migrate and return it. Raises StoreUnavailable,
    SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    migrate(engine, "journal", tables.MIGRATIONS)
    migrate_tenants(engine)
    with typed_errors(), engine.begin() as connection:
        connection.execute(update(_epoch).where(_epoch.c.journal_id == "").values(journal_id=_new_journal_id()))
    return Journal(engine, clock or SystemClock(), clock or SteadyClock(SystemClock(), boot_s))


class Journal(EpochLedger):
    """Read and change the tables of requests. Every method returns immediately; its future resolves after the commit
    that makes the answer durable.

    Futures fail with StoreFull or StoreUnavailable. After the latter the change may or may not be committed; every
    method may be repeated with the same arguments. All except `get`, `unfinished` and `load_plan` change state.
    `objects`: images and other objects in the ledger; `pins`: requests kept until a time; `listing`: requests by
    tenant; `webhooks`: receivers of requests' ends; `tenants`; `time`: the time that measures deadlines.
    """

    def __init__(self, engine: Engine, clock: Clock, pins_clock: Clock | None = None) -> None:
        """Open the journal. `pins_clock` ends the pins; `clock` if None."""
        super().__init__(GroupCommitWriter(engine, "journal"), _epoch)
        self.pins = JournalPins(self._writer, pins_clock or clock)
        self._reader = LedgerReader(engine, "journal")
        self.objects = JournalObjects(self._writer, self._reader, engine.url, self.pins.clock)
        self.listing = JournalListing(self._reader)
        self.webhooks = JournalWebhooks(self._writer, self._reader)
        self.tenants = TenantLedger(self._writer, clock)
        self._clock = clock
        self.time = JournalTime(self._writer, clock)

    def identity(self) -> "Future[str]":
        """Return the journal's identity: a renewed journal, or a new one after a loss, has another."""
        return self._submit(lambda connection: str(connection.execute(select(_epoch.c.journal_id)).scalar_one()))

    def renew(self, above: int) -> "Future[int]":
        """Give the journal a new identity, with epochs larger than `above` and all claimed before; return the newest
        epoch so far.

        The active frontdoor stops at its next beat and, started again, claims an epoch above it.
        """
        least = max(epoch_at(self._clock.wall()), above + 1)
        statement = self._claim_from("", least).values(journal_id=_new_journal_id())
        return self._submit(lambda connection: int(connection.execute(statement).scalar_one()))

    @submitted
    def accept(
        self, connection: Connection, record: AcceptedRequest, webhook: AskedWebhook | None = None
    ) -> AcceptOutcome:
        """Make a request durable, with its webhook, or find the request that holds its (tenant, idempotency key).

        Fails with Unavailable SUPERSEDED if an epoch newer than the record's was claimed (0: of no epoch): its holder
        has taken over the existing requests, and would never see this one.
        """
        if _is_superseded(connection, record.frontdoor_epoch):
            raise superseded()
        if _ADD_REQUEST.first(connection, row_of_request(record, self.time.counted_s)) is not None:
            if webhook is not None:
                add_webhook(connection, record.request_id, webhook)
            return AcceptOutcome(AcceptKind.NEW, record.request_id)
        held = _outcome(_holder(connection, record), record.tenant, record.body_hash)
        assert held is not None
        return held

    def find_key(self, tenant: str, idempotency_key: str, body_hash: str) -> "Future[AcceptOutcome | None]":
        """Return the answer of `accept` for the request that holds the key; None for no such request. Changes
        nothing."""
        key = {"of_tenant": tenant, "key": idempotency_key}
        return self._submit(lambda connection: _outcome(_HOLDER_OF_KEY.first(connection, key), tenant, body_hash))

    def record_route(self, request_id: str, route: bytes, cascade_stage: int = 0) -> "Future[bytes]":
        """Pin the route of a request for a stage of its cascade, and return the route in force. The first route of the
        newest stage stays."""
        return self._submit(lambda connection: _pin_route(connection, request_id, route, cascade_stage))

    @submitted
    def start_attempt(
        self,
        connection: Connection,
        attempt: Attempt,
        worker_id: str,
        cascade_stage: int = 0,
        handed_picture: bytes = b"",
    ) -> bool:
        """Add an attempt, with the input from the stage before; True when repeated.

        Returns False, without a change, if the request is terminal or unknown, a newer token was used, or an epoch
        newer than the attempt's was claimed.
        """
        row = row_of_attempt(attempt, worker_id, cascade_stage, self._clock.wall(), handed_picture)
        # The new holder may follow the attempt before this one: this attempt's image could never be committed.
        return not _is_superseded(connection, attempt.frontdoor_epoch) and _start_attempt(connection, attempt, row)

    @submitted
    def route_and_start(
        self,
        connection: Connection,
        attempt: Attempt,
        worker_id: str,
        route: bytes,
        cascade_stage: int = 0,
        handed_picture: bytes = b"",
    ) -> tuple[bytes, bool]:
        """Do as `record_route` and then `start_attempt`, in one commit; return both results. If a newer epoch was
        claimed, return `route` and False, and pin nothing."""
        if _is_superseded(connection, attempt.frontdoor_epoch):
            return route, False
        pinned = _pin_route(connection, attempt.request_id, route, cascade_stage)
        row = row_of_attempt(attempt, worker_id, cascade_stage, self._clock.wall(), handed_picture)
        return pinned, _start_attempt(connection, attempt, row)

    @submitted
    def commit_result(self, connection: Connection, attempt: Attempt, result: ResultRecord) -> bool:
        """Complete the request if `attempt` holds its newest token and it is not terminal; True when repeated."""
        bound = {"id": attempt.request_id, "token": attempt.fencing_token, "digest": result.image.digest}
        return _COMMIT_RESULT.changed_count(connection, {**values_of_result(result), **bound}) == 1

    def finish(
        self,
        request_id: str,
        state: RequestState,
        reason: str,
        message: str,
        frontdoor_epoch: int = 0,
        free_keys_of: Sequence[str] = (),
    ) -> "Future[bool]":
        """End a request as FAILED, CANCELLED or EXPIRED. False if it is terminal already or unknown, or an epoch newer
        than `frontdoor_epoch` was claimed (0: of no epoch): its holder continues the request. The requests
        `free_keys_of` lose their idempotency keys: a retry begins again."""
        if not state.terminal or state is RequestState.COMPLETED:
            raise InvalidArgument.of("state", f"must be failed, cancelled or expired, got {state.value}")
        values = {"id": request_id, "state": state.value, "error_reason": reason, "error_message": message, "body": b""}

        def work(connection: Connection) -> bool:
            if _is_superseded(connection, frontdoor_epoch):
                return False
            ended = _FINISH.changed_count(connection, {**values, "finished_at": self._clock.wall()}) == 1
            if ended and free_keys_of:
                freed = _requests.c.request_id.in_(free_keys_of)
                connection.execute(update(_requests).where(freed).values(idempotency_key=None))
            return ended

        return self._submit(work)

    def get(self, request_id: str, tenant: str) -> "Future[JournalledRequest | None]":
        """Return the request; None if the tenant has no such request."""
        statement = select_requests().where(_requests.c.request_id == request_id, _requests.c.tenant == tenant)
        return self._submit(lambda connection: next(iter(_read(connection, statement)), None))

    def known(self, request_ids: Sequence[str], tenant: str) -> "Future[frozenset[str]]":
        """Return the ids of `request_ids` that are requests of that tenant."""
        statement = select(_requests.c.request_id)
        statement = statement.where(_requests.c.request_id.in_(request_ids), _requests.c.tenant == tenant)
        return self._submit(lambda connection: frozenset(connection.scalars(statement)))

    def unfinished(self) -> "Future[list[JournalledRequest]]":
        """Return every request that is not terminal, oldest first, for a frontdoor that starts."""
        statement = select_requests().where(_IS_OPEN).order_by(_requests.c.accepted_at)
        return self._submit(lambda connection: _read(connection, statement))

    def forget_finished(
        self, finished_before: float, limit_count: int, tenant: str = "", finished_after: float | None = None
    ) -> "Future[list[JournalledRequest]]":
        """Delete up to `limit_count` requests that ended before `finished_before`, with their idempotency keys, and
        return them, oldest first. `tenant` and `finished_after` restrict them further. Pinned requests and those with a
        pending webhook stay. The reader's thread selects them: many that stay may come first."""
        now = self.pins.clock.wall()
        statement = select(_requests.c.request_id).where(_requests.c.finished_at < finished_before)
        statement = but_untold(statement.where(~is_pinned(now)))
        if tenant:
            statement = statement.where(_requests.c.tenant == tenant)
        if finished_after is not None:
            statement = statement.where(_requests.c.finished_at > finished_after)
        oldest = statement.order_by(_requests.c.finished_at).limit(limit_count)
        found = self._reader.submit(lambda connection: connection.scalars(oldest).all())
        return followed_by(found, lambda ids: self._submit(lambda connection: _forget(connection, ids, now)))

    def forget_tenant(self, tenant: str, limit_count: int) -> "Future[list[JournalledRequest]]":
        """Delete up to `limit_count` of a tenant's ended requests, pinned ones too, and return them."""
        ended = and_(_requests.c.tenant == tenant, _requests.c.finished_at.is_not(None))

        oldest = select_requests().where(ended).limit(limit_count)
        return self._submit(lambda connection: _delete_requests(connection, _read(connection, oldest)))

    def has_requests(self, tenant: str) -> "Future[bool]":
        """Return whether the tenant has any request, ended or not."""
        statement = select(_requests.c.request_id).where(_requests.c.tenant == tenant).limit(1)
        return self._submit(lambda connection: connection.execute(statement).first() is not None)

    @submitted
    def save_plan(self, connection: Connection, plan: bytes) -> None:
        """Store the plan in force, for a start without a controller."""
        if connection.execute(update(tables.plan).values(plan=plan)).rowcount == 0:
            connection.execute(insert(tables.plan), {"singleton": 1, "plan": plan})

    def load_plan(self) -> "Future[bytes | None]":
        """Return the plan last saved."""
        return self._submit(lambda connection: connection.execute(select(tables.plan.c.plan)).scalar_one_or_none())

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._reader.close()
        self._writer.close()

    def _beat_columns(self) -> dict[str, Any]:
        return self.time.columns()

    def _claim(self, holder_id: str) -> ReturningUpdate[int]:
        return self._claim_from(holder_id, epoch_at(self._clock.wall()))

    @staticmethod
    def _claim_from(holder_id: str, least: int) -> ReturningUpdate[int]:
        following = case((_epoch.c.epoch < least, least), else_=_epoch.c.epoch + 1)
        return update(_epoch).values(epoch=following, frontdoor_id=holder_id, beat=0).returning(_epoch.c.epoch)


def _new_journal_id() -> str:
    return secrets.token_hex(16)


def _is_superseded(connection: Connection, epoch: int) -> bool:
    """Return whether an epoch newer than `epoch` was claimed; never for epoch 0, which means none. The shared lock
    blocks claims until the commit."""
    row = _NEWEST_EPOCH.first(connection, {}) if epoch else (0,)
    assert row is not None
    return int(row[0]) > epoch


def _outcome(holder: tuple[Any, ...] | None, tenant: str, body_hash: str) -> AcceptOutcome | None:
    """Return the outcome that a row of `_OF_HOLDER` means for a call of that tenant and body."""
    if holder is None:
        return None
    request_id, held_by, held_hash, state = holder
    same = held_hash == body_hash and held_by == tenant
    return AcceptOutcome(AcceptKind.EXISTING if same else AcceptKind.BODY_DIFFERS, request_id, RequestState(state))


def _holder(connection: Connection, record: AcceptedRequest) -> tuple[Any, ...] | None:
    if record.idempotency_key:
        return _HOLDER_OF_KEY.first(connection, {"of_tenant": record.tenant, "key": record.idempotency_key})
    # A repeated call without a key collides on the id itself.
    return _HOLDER_OF_ID.first(connection, {"id": record.request_id})


def _pin_route(connection: Connection, request_id: str, route: bytes, cascade_stage: int) -> bytes:
    pinned = {"id": request_id, "stage": cascade_stage, "route": route, "cascade_stage": cascade_stage}
    if _PIN_ROUTE.changed_count(connection, pinned) == 1:
        return route
    found = connection.execute(_PINNED_ROUTE, {"id": request_id}).scalar()
    if found is None:
        raise InvalidArgument.of("request_id", "must be of an accepted request")
    return bytes(found)


def _start_attempt(connection: Connection, attempt: Attempt, row: dict[str, Any]) -> bool:
    token, epoch = attempt.fencing_token, attempt.frontdoor_epoch
    started = {"state": RequestState.RUNNING.value, "newest_token": token, "newest_epoch": epoch}
    bound = {"id": attempt.request_id, "token": token, "epoch": epoch}
    if _START_ATTEMPT.changed_count(connection, {**started, **bound}) == 1:
        _ADD_ATTEMPT.changed_count(connection, row)
        return True
    return _is_newest_attempt(connection, attempt, row["worker_id"])


def _is_newest_attempt(connection: Connection, attempt: Attempt, worker_id: str) -> bool:
    """Return whether this attempt is recorded already: the caller missed the first answer."""
    statement = select_requests().where(_requests.c.request_id == attempt.request_id, _IS_OPEN)
    return any(
        record.newest_attempt is not None
        and record.newest_attempt.worker_id == worker_id
        and record.newest_attempt.attempt == attempt
        for record in _read(connection, statement)
    )


def _forget(connection: Connection, found: Sequence[str], now: float) -> list[JournalledRequest]:
    """Delete the requests of `found` that are not pinned by now."""
    if not found:
        return []
    statement = select_requests().where(_requests.c.request_id.in_(found), ~is_pinned(now))
    records = _read(connection, statement.order_by(_requests.c.finished_at))
    return _delete_requests(connection, records)


def _delete_requests(connection: Connection, records: list[JournalledRequest]) -> list[JournalledRequest]:
    ids = [record.request.request_id for record in records]
    connection.execute(delete(_requests).where(_requests.c.request_id.in_(ids)))
    return records


def _read(connection: Connection, statement: Select[Any]) -> list[JournalledRequest]:
    return [request_of_row(row) for row in connection.execute(statement)]
