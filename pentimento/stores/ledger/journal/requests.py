"""Keep the frontdoor's journal: accepted requests, their routes, their attempts, their results.

Each change is one statement with its condition in the WHERE clause, so that it stays right when two frontdoors (an
active one and a standby, or one that was stopped and woke up) write to the same ledger.
"""

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, and_, bindparam, delete, insert, or_, select, update

from pentimento.domain.clock import Clock, SteadyClock, SystemClock, boot_s
from pentimento.domain.erasure import ErasedKind
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.epochs import EpochLedger, superseded
from pentimento.stores.ledger.erasure_ledger import ErasureLedger, add_erased
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.journal.listing import JournalListing
from pentimento.stores.ledger.journal.objects import JournalObjects
from pentimento.stores.ledger.journal.pins import IS_PINNED, JournalPins
from pentimento.stores.ledger.journal.records import (
    REQUESTS,
    AcceptedRequest,
    AcceptKind,
    AcceptOutcome,
    JournalledRequest,
    ResultRecord,
    request_of_row,
    row_of_attempt,
    row_of_request,
    values_of_result,
)
from pentimento.stores.ledger.journal.time import JournalTime
from pentimento.stores.ledger.journal.webhooks import AskedWebhook, JournalWebhooks, add_webhook, but_untold
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present
from pentimento.stores.ledger.tenant_ledger import TenantLedger
from pentimento.stores.ledger.tenant_tables import SCHEMA as TENANTS
from pentimento.stores.ledger.writer import GroupCommitWriter, LedgerReader, followed_by, submitted

_requests = tables.requests
_epoch = tables.epoch
_plan = tables.plan
_IS_OPEN = _requests.c.finished_at.is_(None)
_IS_IT = _requests.c.request_id == bindparam("id")
_IS_OF_TENANT = _requests.c.tenant == bindparam("of_tenant")
_IS_ONE_OF = among(_requests.c.request_id, "ids")
_NEWEST_EPOCH = Statement(select(_epoch.c.epoch).with_for_update(read=True))
_NAME = Statement(update(_epoch).where(_epoch.c.journal_id == "").values(journal_id=bindparam("new_id")))
_IDENTITY = Statement(select(_epoch.c.journal_id))
_ADD_REQUEST = insert_unless_present(_requests)
_MAY_PIN_ROUTE = or_(_requests.c.route.is_(None), _requests.c.cascade_stage < bindparam("stage"))
_PIN_ROUTE = Statement(update(_requests).where(_IS_IT, _MAY_PIN_ROUTE))
_PINNED_ROUTE = Statement(select(_requests.c.route).where(_IS_IT))
_IS_NEWER = and_(_requests.c.newest_token < bindparam("token"), _requests.c.newest_epoch <= bindparam("of_epoch"))
_START_ATTEMPT = Statement(
    update(_requests).where(_IS_IT, _IS_OPEN, _IS_NEWER).values(attempt_count=_requests.c.attempt_count + 1)
)
_ADD_ATTEMPT = Statement(insert(tables.attempts))
# The key decides: an earlier frontdoor that commits the same attempt late has stored the image under another one.
_IS_REPEATED = and_(_requests.c.state == RequestState.COMPLETED.value, _requests.c.image_key == bindparam("key"))
_MAY_COMMIT = and_(_IS_IT, _requests.c.newest_token == bindparam("token"), or_(_IS_OPEN, _IS_REPEATED))
_COMMIT_RESULT = Statement(update(_requests).where(_MAY_COMMIT))
_OF_HOLDER = select(*_requests.c["request_id", "tenant", "body_hash", "state"])
_HOLDER_OF_KEY = Statement(_OF_HOLDER.where(_IS_OF_TENANT, _requests.c.idempotency_key == bindparam("key")))
_HOLDER_OF_ID = Statement(_OF_HOLDER.where(_IS_IT))
_FINISH = Statement(update(_requests).where(_IS_IT, _IS_OPEN))
_FREE_KEYS = Statement(update(_requests).where(_IS_ONE_OF).values(idempotency_key=None))
_REQUEST = Statement(REQUESTS.where(_IS_IT, _IS_OF_TENANT))
_OPEN_REQUEST = Statement(REQUESTS.where(_IS_IT, _IS_OPEN))
_UNFINISHED = Statement(REQUESTS.where(_IS_OPEN).order_by(_requests.c.accepted_at))
_FORGETTABLE = Statement(REQUESTS.where(_IS_ONE_OF, ~IS_PINNED).order_by(_requests.c.finished_at))
_FINISHED_OF_TENANT = Statement(REQUESTS.where(_IS_OF_TENANT, ~_IS_OPEN).limit(bindparam("limit_count")))
_ENDED_ONES = Statement(REQUESTS.where(_IS_ONE_OF, _IS_OF_TENANT, ~_IS_OPEN))
_KNOWN = Statement(select(_requests.c.request_id).where(_IS_ONE_OF, _IS_OF_TENANT))
_ANY = Statement(select(_requests.c.request_id).where(_IS_OF_TENANT).limit(1))
_DELETE = Statement(delete(_requests).where(_IS_ONE_OF))
_SAVE_PLAN, _ADD_PLAN, _PLAN = Statement(update(_plan)), Statement(insert(_plan)), Statement(select(_plan.c.plan))


@cache
def _oldest_finished(of_tenant: bool, has_start: bool, of_others: bool) -> Statement:
    """Return the statement that selects ended requests without a pin or a pending webhook, oldest first."""
    wanted = [_requests.c.finished_at < bindparam("before"), ~IS_PINNED]
    wanted += [_IS_OF_TENANT] if of_tenant else []
    wanted += [_requests.c.finished_at > bindparam("since")] if has_start else []
    wanted += [~among(_requests.c.tenant, "but_tenants")] if of_others else []
    found = but_untold(select(_requests.c.request_id).where(*wanted))
    return Statement(found.order_by(_requests.c.finished_at).limit(bindparam("limit_count")))


def open_journal(url: str, clock: Clock | None = None, tenants_url: str = "") -> "Journal":
    """Connect to the journal at `url` (as in `open_engine`), migrate and return it; `tenants_url`: the ledger of its
    tenants, if another one. Raises StoreUnavailable, SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    tenants = open_engine(tenants_url, "tenants_url") if tenants_url not in ("", url) else engine
    migrate(engine, tables.SCHEMA)
    for ledger in {engine, tenants}:
        migrate(ledger, TENANTS)
    with typed_errors(), engine.begin() as connection:
        _NAME.change(connection, new_id=_new_journal_id())
    return Journal(engine, clock or SystemClock(), clock or SteadyClock(SystemClock(), boot_s), tenants)


class Journal(EpochLedger):
    """Read and change the tables of requests. Every method returns immediately; its future resolves after the commit
    that makes the answer durable.

    Futures fail with StoreFull or StoreUnavailable. After the latter the change may or may not be committed; every
    method may be repeated with the same arguments. All except `get`, `unfinished` and `load_plan` change state.
    `objects`: images and other objects in the ledger; `pins`: requests kept until a time; `listing`: requests by
    tenant; `webhooks`: receivers of requests' ends; `tenants`; `departures`: the deleted ones; `erasures`: this
    journal's progress with their data; `time`: the time that measures deadlines.
    """

    def __init__(
        self, engine: Engine, clock: Clock, pins_clock: Clock | None = None, tenants: Engine | None = None
    ) -> None:
        """Open the journal. `pins_clock` ends the pins; `clock` if None. `tenants`: the database of tenants, if another
        one than `engine`."""
        super().__init__(GroupCommitWriter(engine, "journal"), clock, _epoch, "frontdoor_id")
        self._renew = Statement(self._claiming.values(journal_id=bindparam("new_id")))
        self.pins = JournalPins(self._writer, pins_clock or clock)
        self._reader = LedgerReader(engine, "journal")
        self.objects = JournalObjects(self._writer, self._reader, engine.url, self.pins.clock)
        self.listing = JournalListing(self._reader)
        self.webhooks = JournalWebhooks(self._writer, self._reader)
        self.erasures = self.departures = ErasureLedger(self._writer, clock)
        self._tenants_writer = self._writer
        if tenants is not None and tenants is not engine:
            self._tenants_writer = GroupCommitWriter(tenants, "tenants")
            self.departures = ErasureLedger(self._tenants_writer, clock)
        self.tenants = TenantLedger(self._tenants_writer, clock)
        self.time = JournalTime(self._writer, clock)

    def identity(self) -> "Future[str]":
        """Return the journal's identity: a renewed journal, or a new one after a loss, has another."""
        return self._submit(lambda connection: str(_IDENTITY.scalar(connection)))

    def renew(self, above: int) -> "Future[int]":
        """Give the journal a new identity, with epochs larger than `above` and all claimed before; return the newest
        epoch so far.

        The active frontdoor stops at its next beat and, started again, claims an epoch above it.
        """
        claimed = self._claim_of("")
        renewed = {**claimed, "least": max(claimed["least"], above + 1), "new_id": _new_journal_id()}
        return self._submit(lambda connection: int(self._renew.scalar(connection, **renewed)))

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
        if _ADD_REQUEST.first(connection, **row_of_request(record, self.time.counted_s)) is not None:
            if webhook is not None:
                add_webhook(connection, record.request_id, webhook)
            return AcceptOutcome(AcceptKind.NEW, record.request_id)
        held = _outcome(_holder(connection, record), record.tenant, record.body_hash)
        assert held is not None
        return held

    @submitted
    def find_key(
        self, connection: Connection, tenant: str, idempotency_key: str, body_hash: str
    ) -> AcceptOutcome | None:
        """Return the answer of `accept` for the request that holds the key; None for no such request. Changes
        nothing."""
        holder = _HOLDER_OF_KEY.first(connection, of_tenant=tenant, key=idempotency_key)
        return _outcome(holder, tenant, body_hash)

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
        """Pin the route of a request for a stage of its cascade, then do as `start_attempt`, in one commit; return the
        route in force and the result. The first route of the newest stage stays. If a newer epoch was claimed, return
        `route` and False, and pin nothing."""
        if _is_superseded(connection, attempt.frontdoor_epoch):
            return route, False
        pinned = _pin_route(connection, attempt.request_id, route, cascade_stage)
        row = row_of_attempt(attempt, worker_id, cascade_stage, self._clock.wall(), handed_picture)
        return pinned, _start_attempt(connection, attempt, row)

    @submitted
    def commit_result(self, connection: Connection, attempt: Attempt, result: ResultRecord) -> bool:
        """Complete the request if `attempt` holds its newest token and it is not terminal; True when repeated."""
        bound = {"id": attempt.request_id, "token": attempt.fencing_token, "key": result.image.key}
        return _COMMIT_RESULT.change(connection, **values_of_result(result), **bound) == 1

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
        values = {"state": state.value, "error_reason": reason, "error_message": message, "body": b""}

        def work(connection: Connection) -> bool:
            if _is_superseded(connection, frontdoor_epoch):
                return False
            ended = _FINISH.change(connection, id=request_id, finished_at=self._clock.wall(), **values) == 1
            if ended and free_keys_of:
                _FREE_KEYS.change(connection, ids=free_keys_of)
            return ended

        return self._submit(work)

    @submitted
    def get(self, connection: Connection, request_id: str, tenant: str) -> JournalledRequest | None:
        """Return the request; None if the tenant has no such request."""
        row = _REQUEST.first(connection, id=request_id, of_tenant=tenant)
        return None if row is None else request_of_row(row)

    @submitted
    def known(self, connection: Connection, request_ids: Sequence[str], tenant: str) -> frozenset[str]:
        """Return the ids of `request_ids` that are requests of that tenant."""
        return frozenset(_KNOWN.scalars(connection, ids=request_ids, of_tenant=tenant))

    @submitted
    def unfinished(self, connection: Connection) -> list[JournalledRequest]:
        """Return every request that is not terminal, oldest first, for a frontdoor that starts."""
        return [*map(request_of_row, _UNFINISHED.rows(connection))]

    def forget_finished(
        self,
        finished_before: float,
        limit_count: int,
        tenant: str = "",
        finished_after: float | None = None,
        but_tenants: Sequence[str] = (),
    ) -> "Future[list[JournalledRequest]]":
        """Delete up to `limit_count` requests that ended before `finished_before`, with their idempotency keys, and
        return them, oldest first. `tenant` and `finished_after` restrict them further; those of `but_tenants` stay, as
        do pinned requests and those with a pending webhook. The reader's thread selects them: many that stay may come
        first."""
        now = self.pins.clock.wall()
        oldest = _oldest_finished(bool(tenant), finished_after is not None, bool(but_tenants))
        wanted: dict[str, Any] = {"before": finished_before, "now": now, "limit_count": limit_count}
        wanted |= {"of_tenant": tenant} if tenant else {}
        wanted |= {} if finished_after is None else {"since": finished_after}
        wanted |= {"but_tenants": but_tenants} if but_tenants else {}
        found = self._reader.submit(lambda connection: oldest.scalars(connection, **wanted))
        return followed_by(found, lambda ids: self._submit(lambda connection: _forget(connection, ids, now)))

    @submitted
    def ended_requests(self, connection: Connection, tenant: str, limit_count: int) -> list[JournalledRequest]:
        """Return up to `limit_count` of a tenant's ended requests, pinned ones too."""
        rows = _FINISHED_OF_TENANT.rows(connection, of_tenant=tenant, limit_count=limit_count)
        return [*map(request_of_row, rows)]

    @submitted
    def erase_requests(
        self, connection: Connection, tenant: str, request_ids: Sequence[str]
    ) -> list[JournalledRequest]:
        """Delete those ended requests of a tenant that is erased, count them and their images in its erasure, and
        return them."""
        rows = _ENDED_ONES.rows(connection, ids=request_ids, of_tenant=tenant)
        gone = _delete_requests(connection, rows)
        images = [one.result.image.size_bytes for one in gone if one.result is not None and one.result.image.key]
        kinds = (ErasedKind("requests", len(gone)), ErasedKind("results", len(images), sum(images)))
        add_erased(connection, tenant, kinds)
        return gone

    @submitted
    def has_requests(self, connection: Connection, tenant: str) -> bool:
        """Return whether the tenant has any request, ended or not."""
        return _ANY.first(connection, of_tenant=tenant) is not None

    @submitted
    def save_plan(self, connection: Connection, plan: bytes) -> None:
        """Store the plan in force, for a start without a controller."""
        if _SAVE_PLAN.change(connection, plan=plan) == 0:
            _ADD_PLAN.change(connection, singleton=1, plan=plan)

    @submitted
    def load_plan(self, connection: Connection) -> bytes | None:
        """Return the plan last saved."""
        plan: bytes | None = _PLAN.scalar(connection)
        return plan

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._reader.close()
        if self._tenants_writer is not self._writer:
            self._tenants_writer.close()
        self._writer.close()

    def _beat_columns(self) -> dict[str, Any]:
        return self.time.columns()


def _new_journal_id() -> str:
    return secrets.token_hex(16)


def _is_superseded(connection: Connection, epoch: int) -> bool:
    """Return whether an epoch newer than `epoch` was claimed; never for epoch 0, which means none. The shared lock
    blocks claims until the commit."""
    return bool(epoch) and int(_NEWEST_EPOCH.scalar(connection)) > epoch


def _outcome(holder: Any | None, tenant: str, body_hash: str) -> AcceptOutcome | None:
    """Return the outcome that a row of `_OF_HOLDER` means for a call of that tenant and body."""
    if holder is None:
        return None
    same = holder.body_hash == body_hash and holder.tenant == tenant
    kind = AcceptKind.EXISTING if same else AcceptKind.BODY_DIFFERS
    return AcceptOutcome(kind, holder.request_id, RequestState(holder.state))


def _holder(connection: Connection, record: AcceptedRequest) -> Any | None:
    if record.idempotency_key:
        return _HOLDER_OF_KEY.first(connection, of_tenant=record.tenant, key=record.idempotency_key)
    # A repeated call without a key collides on the id itself.
    return _HOLDER_OF_ID.first(connection, id=record.request_id)


def _pin_route(connection: Connection, request_id: str, route: bytes, cascade_stage: int) -> bytes:
    pinned = {"id": request_id, "stage": cascade_stage, "route": route, "cascade_stage": cascade_stage}
    if _PIN_ROUTE.change(connection, **pinned) == 1:
        return route
    found = _PINNED_ROUTE.scalar(connection, id=request_id)
    if found is None:
        raise InvalidArgument.of("request_id", "must be of an accepted request")
    return bytes(found)


def _start_attempt(connection: Connection, attempt: Attempt, row: dict[str, Any]) -> bool:
    token, epoch = attempt.fencing_token, attempt.frontdoor_epoch
    started = {"state": RequestState.RUNNING.value, "newest_token": token, "newest_epoch": epoch}
    if _START_ATTEMPT.change(connection, id=attempt.request_id, token=token, of_epoch=epoch, **started) == 1:
        _ADD_ATTEMPT.change(connection, **row)
        return True
    # The attempt may be recorded already: the caller missed the first answer.
    found = _OPEN_REQUEST.first(connection, id=attempt.request_id)
    newest = None if found is None else request_of_row(found).newest_attempt
    return newest is not None and newest.worker_id == row["worker_id"] and newest.attempt == attempt


def _forget(connection: Connection, found: Sequence[str], now: float) -> list[JournalledRequest]:
    """Delete the requests of `found` that are not pinned by now."""
    return _delete_requests(connection, _FORGETTABLE.rows(connection, ids=found, now=now)) if found else []


def _delete_requests(connection: Connection, rows: Sequence[Any]) -> list[JournalledRequest]:
    _DELETE.change(connection, ids=[row.request_id for row in rows])
    return [*map(request_of_row, rows)]
