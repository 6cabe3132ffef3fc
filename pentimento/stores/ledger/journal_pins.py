"""Pin requests so that their images stay replayable until a time: their rows and inputs are stored until then."""

from concurrent.futures import Future

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, insert, select

from pentimento.domain.clock import Clock
from pentimento.domain.errors import NotFound, ResourceExhausted
from pentimento.domain.generation import ObjectReference, SpecInput
from pentimento.stores.ledger import journal_tables as tables
from pentimento.stores.ledger.records import PicturePin
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_requests = tables.requests
_pins = tables.pins
_inputs = tables.pinned_inputs


class JournalPins:
    """Read and change the pins of a journal, by its clock. Futures are as the journal's; each call may be repeated."""

    def __init__(self, writer: GroupCommitWriter, clock: Clock) -> None:
        self._submit = writer.submit
        self.clock = clock

    @submitted
    def pin(self, connection: Connection, wanted: PicturePin, tenant_bytes: int) -> PicturePin | None:
        """Pin a tenant's request, in place of its previous pin, and return that one.

        Fails with NotFound UNKNOWN_REQUEST for an unknown request, and with ResourceExhausted QUOTA_EXCEEDED if the
        tenant's pins would exceed `tenant_bytes`; then nothing changed.
        """
        is_theirs = and_(_requests.c.request_id == wanted.request_id, _requests.c.tenant == wanted.tenant)
        if connection.execute(select(_requests.c.request_id).where(is_theirs)).first() is None:
            raise NotFound.of("UNKNOWN_REQUEST", "request_id", "there is no such request")
        now = self.clock.wall()
        former = _find(connection, wanted.tenant, wanted.request_id, now)
        others = _pinned_bytes(connection, wanted.tenant, now) - (former.size_bytes if former else 0)
        if others + wanted.size_bytes > tenant_bytes:
            raise quota_exceeded(tenant_bytes)
        connection.execute(delete(_pins).where(_pins.c.request_id == wanted.request_id))
        row = {name: getattr(wanted, name) for name in ("request_id", "tenant", "expires_at", "size_bytes")}
        connection.execute(insert(_pins), row)
        parts = [
            {
                "request_id": wanted.request_id,
                "place": part.field,
                "key": part.object.key,
                "digest": part.object.digest,
                "size_bytes": part.object.size_bytes,
            }
            for part in wanted.inputs
        ]
        if parts:
            connection.execute(insert(_inputs), parts)
        return former

    def unpin(self, tenant: str, request_id: str) -> "Future[bool]":
        """End the pin of a request; False if it has none."""
        statement = delete(_pins).where(_of(tenant, request_id))
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    def find(self, tenant: str, request_id: str) -> "Future[PicturePin | None]":
        """Return the pin of a tenant's request; None if it has none, or it has ended."""
        return self._submit(lambda connection: _find(connection, tenant, request_id, self.clock.wall()))

    def pinned_bytes(self, tenant: str) -> "Future[int]":
        """Return how many bytes the tenant has pinned."""
        return self._submit(lambda connection: _pinned_bytes(connection, tenant, self.clock.wall()))


def is_pinned(now: float) -> ColumnElement[bool]:
    """Return the condition that a request is pinned."""
    # No IN: PostgreSQL compares each request with all pins if those outgrow its memory for one hash table.
    return exists().where(_pins.c.request_id == _requests.c.request_id, _pins.c.expires_at > now)


def pinned_keys(now: float) -> Select[tuple[str]]:
    """Select the keys of the inputs of pinned requests."""
    return select(_inputs.c.key).join(_pins, _pins.c.request_id == _inputs.c.request_id).where(_pins.c.expires_at > now)


def quota_exceeded(tenant_bytes: int) -> ResourceExhausted:
    """Return the error for a tenant that has pinned as many bytes as it may."""
    message = f"tenant-pinned-bytes: what a tenant has pinned may have {tenant_bytes} bytes; unpin something"
    return ResourceExhausted("QUOTA_EXCEEDED", message, metadata={"quota": "tenant-pinned-bytes"})


def _find(connection: Connection, tenant: str, request_id: str, now: float) -> PicturePin | None:
    row = connection.execute(select(_pins).where(_of(tenant, request_id), _pins.c.expires_at > now)).one_or_none()
    if row is None:
        return None
    parts = connection.execute(select(_inputs).where(_inputs.c.request_id == request_id).order_by(_inputs.c.place))
    inputs = tuple(SpecInput(part.place, ObjectReference(part.key, part.digest, part.size_bytes)) for part in parts)
    return PicturePin(request_id, tenant, row.expires_at, row.size_bytes, inputs)


def _pinned_bytes(connection: Connection, tenant: str, now: float) -> int:
    total = func.coalesce(func.sum(_pins.c.size_bytes), 0)
    of_tenant = select(total).where(_pins.c.tenant == tenant, _pins.c.expires_at > now)
    return int(connection.execute(of_tenant).scalar_one())


def _of(tenant: str, request_id: str) -> ColumnElement[bool]:
    return and_(_pins.c.tenant == tenant, _pins.c.request_id == request_id)
