"""Keep the controllers' ledger: the leader among several, the last plan of a leader, and manual registrations.

Each change is one statement with its condition in the WHERE clause, so that it stays right when two controllers (a
leader and a standby, or one that was stopped and woke up) write to the same ledger.
"""

from sqlalchemy import BindParameter, Connection, Engine, and_, bindparam, delete, or_, select, update

from pentimento.domain.clock import Clock, SystemClock, latest_believable
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import RegisteredRow
from pentimento.stores.ledger import fleet_tables as tables
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.epochs import EpochLedger
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.statements import Statement, insert_unless_present
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_epoch = tables.epoch
_plan = tables.plan
_registered = tables.registered
_RISEN = bindparam("risen", type_=_epoch.c.epoch.type)
_RISE = Statement(
    update(_epoch).where(or_(_epoch.c.epoch == bindparam("from_epoch"), _epoch.c.epoch == _RISEN)).values(epoch=_RISEN)
)
_NEWEST_EPOCH = Statement(select(_epoch.c.epoch).with_for_update(read=True))
_LEADER: BindParameter[int] = bindparam("of_epoch")
_NUMBER: BindParameter[int] = bindparam("number")
_IS_NEWER = or_(_plan.c.leader_epoch < _LEADER, and_(_plan.c.leader_epoch == _LEADER, _plan.c.sequence <= _NUMBER))
_REPLACE_PLAN = Statement(update(_plan).where(_IS_NEWER))
_ADD_PLAN = insert_unless_present(_plan)
_PLAN = Statement(select(_plan.c.plan))
_ADD = insert_unless_present(_registered)
_OF_ROW = _registered.c["kind", "name", "digest", "document"]
_SAME = Statement(select(_registered.c.name).where(*(column == bindparam(f"of_{column.name}") for column in _OF_ROW)))
_REMOVE = Statement(
    delete(_registered).where(_registered.c.kind == bindparam("of_kind"), _registered.c.name == bindparam("of_name"))
)
_REPLACE = Statement(
    update(_registered)
    .where(*(_registered.c[name] == bindparam(f"of_{name}") for name in ("kind", "name", "digest")))
    .values(document=bindparam("to_document"))
)
_REGISTERED = Statement(select(*_OF_ROW).order_by(_registered.c.kind, _registered.c.name))


def open_fleet_ledger(url: str, clock: Clock | None = None) -> "FleetLedger":
    """Connect to the ledger at `url` (as in `open_engine`), migrate and return it. Raises StoreUnavailable,
    SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    migrate(engine, tables.SCHEMA)
    return FleetLedger(engine, clock or SystemClock())


class FleetLedger(EpochLedger):
    """Read and change the tables of controllers. Every method returns immediately; its future resolves after the commit
    that makes the answer durable, and fails with StoreFull or StoreUnavailable. All except `lease`, `load_plan` and
    `registered` change state; each may be repeated with the same arguments."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(GroupCommitWriter(engine, "fleet-ledger"), clock, _epoch, "controller_id")

    @submitted
    def rise(self, connection: Connection, epoch: int, to: int) -> bool:
        """Give the holder of an epoch a larger one; False if an epoch newer than its own was claimed."""
        return _RISE.change(connection, from_epoch=epoch, risen=to) == 1

    @submitted
    def save_plan(self, connection: Connection, version: PlanVersion, plan: bytes) -> bool:
        """Store a leader's plan in place of an older one; False, without a change, if an epoch newer than the plan's
        was claimed or a newer plan is stored."""
        epoch, sequence = version.leader_epoch, version.sequence
        if _NEWEST_EPOCH.scalar(connection) > epoch:
            return False
        values = {"leader_epoch": epoch, "sequence": sequence, "plan": plan}
        if _REPLACE_PLAN.change(connection, of_epoch=epoch, number=sequence, **values) == 1:
            return True
        return _ADD_PLAN.first(connection, singleton=1, **values) is not None

    @submitted
    def load_plan(self, connection: Connection) -> bytes | None:
        """Return the plan last saved."""
        plan: bytes | None = _PLAN.scalar(connection)
        return plan

    @submitted
    def register(self, connection: Connection, row: RegisteredRow) -> bool:
        """Register a row; False, without a change, if the same kind and name exists with another digest or document."""
        if _ADD.first(connection, **vars(row), registered_at=self._clock.wall()):
            return True
        return _SAME.first(connection, **{f"of_{name}": value for name, value in vars(row).items()}) is not None

    @submitted
    def replace(self, connection: Connection, row: RegisteredRow) -> bool:
        """Replace the document of a registration; False if it is missing or has another digest."""
        given = {f"of_{name}": getattr(row, name) for name in ("kind", "name", "digest")}
        return _REPLACE.change(connection, **given, to_document=row.document) == 1

    @submitted
    def unregister(self, connection: Connection, kind: str, name: str) -> bool:
        """Remove a registration; False if it is missing."""
        return _REMOVE.change(connection, of_kind=kind, of_name=name) == 1

    @submitted
    def registered(self, connection: Connection) -> list[RegisteredRow]:
        """Return all registrations, ordered by kind and name."""
        return [RegisteredRow(*row) for row in _REGISTERED.rows(connection)]

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._writer.close()

    def _most(self, now: float) -> int:
        # Followers would reject an epoch from a clock far ahead.
        return latest_believable(now)
