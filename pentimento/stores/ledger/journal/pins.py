"""Pin requests so that their images stay replayable until a time: their rows and inputs are stored until then."""

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, exists, func, insert, select

from pentimento.domain.clock import Clock
from pentimento.domain.errors import NotFound, ResourceExhausted
from pentimento.domain.generation import ObjectReference, SpecInput
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.journal.records import PicturePin
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_requests = tables.requests
_pins = tables.pins
_inputs = tables.pinned_inputs
_IS_NOW = _pins.c.expires_at > bindparam("now")
# No IN: PostgreSQL compares each request with all pins if those outgrow its memory for one hash table.
IS_PINNED = exists().where(_pins.c.request_id == _requests.c.request_id, _IS_NOW)
# The keys of the inputs of pinned requests.
PINNED_KEYS = select(_inputs.c.key).join(_pins, _pins.c.request_id == _inputs.c.request_id).where(_IS_NOW)
_OF_TENANT: BindParameter[str] = bindparam("of_tenant")
_IS_IT: BindParameter[str] = bindparam("id")
_IS_PIN = and_(_pins.c.tenant == _OF_TENANT, _pins.c.request_id == _IS_IT)
_REQUEST = Statement(
    select(_requests.c.request_id).where(_requests.c.request_id == _IS_IT, _requests.c.tenant == _OF_TENANT)
)
_PIN = Statement(select(_pins.c.expires_at, _pins.c.size_bytes).where(_IS_PIN, _IS_NOW))
_INPUTS = Statement(
    select(*_inputs.c["place", "key", "digest", "size_bytes"])
    .where(_inputs.c.request_id == _IS_IT)
    .order_by(_inputs.c.place)
)
_PINNED_BYTES = Statement(
    select(func.coalesce(func.sum(_pins.c.size_bytes), 0)).where(_pins.c.tenant == _OF_TENANT, _IS_NOW)
)
_ADD, _ADD_INPUT, _UNPIN = Statement(insert(_pins)), Statement(insert(_inputs)), Statement(delete(_pins).where(_IS_PIN))


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
        tenant, request_id = wanted.tenant, wanted.request_id
        if _REQUEST.first(connection, id=request_id, of_tenant=tenant) is None:
            raise NotFound.of("UNKNOWN_REQUEST", "request_id", "there is no such request")
        now = self.clock.wall()
        former = _find(connection, tenant, request_id, now)
        others = _pinned_bytes(connection, tenant, now) - (former.size_bytes if former else 0)
        if others + wanted.size_bytes > tenant_bytes:
            raise quota_exceeded(tenant_bytes)
        _UNPIN.change(connection, id=request_id, of_tenant=tenant)
        row = {"request_id": request_id, "tenant": tenant, "expires_at": wanted.expires_at}
        _ADD.change(connection, size_bytes=wanted.size_bytes, **row)
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
        _ADD_INPUT.each(connection, parts)
        return former

    @submitted
    def unpin(self, connection: Connection, tenant: str, request_id: str) -> bool:
        """End the pin of a request; False if it has none."""
        return _UNPIN.change(connection, id=request_id, of_tenant=tenant) == 1

    @submitted
    def find(self, connection: Connection, tenant: str, request_id: str) -> PicturePin | None:
        """Return the pin of a tenant's request; None if it has none, or it has ended."""
        return _find(connection, tenant, request_id, self.clock.wall())

    @submitted
    def pinned_bytes(self, connection: Connection, tenant: str) -> int:
        """Return how many bytes the tenant has pinned."""
        return _pinned_bytes(connection, tenant, self.clock.wall())


def quota_exceeded(tenant_bytes: int) -> ResourceExhausted:
    """Return the error for a tenant that has pinned as many bytes as it may."""
    message = f"tenant-input-bytes: what a tenant has pinned may have {tenant_bytes} bytes; unpin something"
    return ResourceExhausted("QUOTA_EXCEEDED", message, metadata={"quota": "tenant-input-bytes"})


def _find(connection: Connection, tenant: str, request_id: str, now: float) -> PicturePin | None:
    row = _PIN.first(connection, id=request_id, of_tenant=tenant, now=now)
    if row is None:
        return None
    parts = _INPUTS.rows(connection, id=request_id)
    inputs = tuple(SpecInput(place, ObjectReference(*reference)) for place, *reference in parts)
    return PicturePin(request_id, tenant, row.expires_at, row.size_bytes, inputs)


def _pinned_bytes(connection: Connection, tenant: str, now: float) -> int:
    return int(_PINNED_BYTES.scalar(connection, of_tenant=tenant, now=now))
