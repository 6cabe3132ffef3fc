"""Keep the controllers' ledger: the leader among several, the last plan of a leader, and manual registrations.

Each change is one statement with its condition in the WHERE clause, so that it stays right when two controllers (a
leader and a standby, or one that was stopped and woke up) write to the same ledger.
"""

from concurrent.futures import Future

from sqlalchemy import Connection, Engine, and_, case, delete, insert, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.epochs import epoch_at, latest_believable
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import RegisteredRow
from pentimento.stores.ledger import fleet_tables as tables
from pentimento.stores.ledger.database import insert_unless_present, open_engine
from pentimento.stores.ledger.epoch_ledger import EpochLedger
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_epoch = tables.epoch
_plan = tables.plan
_registered = tables.registered


def open_fleet_ledger(url: str, clock: Clock | None = None) -> "FleetLedger":
    """Connect to the ledger at `url` (as in `open_engine`), migrate and return it. Raises StoreUnavailable,
    SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    migrate(engine, "fleet", tables.MIGRATIONS)
    return FleetLedger(engine, clock or SystemClock())


class FleetLedger(EpochLedger):
    """Read and change the tables of controllers. Every method returns immediately; its future resolves after the commit
    that makes the answer durable, and fails with StoreFull or StoreUnavailable. All except `lease`, `load_plan` and
    `registered` change state; each may be repeated with the same arguments."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(GroupCommitWriter(engine, "fleet-ledger"), _epoch)
        self._clock = clock

    def rise(self, epoch: int, to: int) -> "Future[bool]":
        """Give the holder of an epoch a larger one; False if an epoch newer than its own was claimed."""
        statement = update(_epoch).where(or_(_epoch.c.epoch == epoch, _epoch.c.epoch == to)).values(epoch=to)
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    @submitted
    def save_plan(self, connection: Connection, version: PlanVersion, plan: bytes) -> bool:
        """Store a leader's plan in place of an older one; False, without a change, if an epoch newer than the plan's
        was claimed or a newer plan is stored."""
        newest = connection.execute(select(_epoch.c.epoch).with_for_update(read=True)).scalar_one()
        if newest > version.leader_epoch:
            return False
        values = {"leader_epoch": version.leader_epoch, "sequence": version.sequence, "plan": plan}
        is_newer = or_(
            _plan.c.leader_epoch < version.leader_epoch,
            and_(_plan.c.leader_epoch == version.leader_epoch, _plan.c.sequence <= version.sequence),
        )
        if connection.execute(update(_plan).where(is_newer).values(**values)).rowcount == 1:
            return True
        if connection.execute(select(_plan.c.singleton)).first() is not None:
            return False
        connection.execute(insert(_plan), {"singleton": 1, **values})
        return True

    def load_plan(self) -> "Future[bytes | None]":
        """Return the plan last saved."""
        return self._submit(lambda connection: connection.execute(select(_plan.c.plan)).scalar_one_or_none())

    @submitted
    def register(self, connection: Connection, row: RegisteredRow) -> bool:
        """Register a row; False, without a change, if the same kind and name exists with another digest or document."""
        values = {**vars(row), "registered_at": self._clock.wall()}
        if insert_unless_present(connection, _registered, values):
            return True
        same = select(_registered.c.name).where(
            _registered.c.kind == row.kind,
            _registered.c.name == row.name,
            _registered.c.digest == row.digest,
            _registered.c.document == row.document,
        )
        return connection.execute(same).first() is not None

    def unregister(self, kind: str, name: str) -> "Future[bool]":
        """Remove a registration; False if it is missing."""
        statement = delete(_registered).where(_registered.c.kind == kind, _registered.c.name == name)
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    def registered(self) -> "Future[list[RegisteredRow]]":
        """Return all registrations, ordered by kind and name."""
        columns = (_registered.c.kind, _registered.c.name, _registered.c.digest, _registered.c.document)
        statement = select(*columns).order_by(_registered.c.kind, _registered.c.name)
        return self._submit(lambda connection: [RegisteredRow(*row) for row in connection.execute(statement)])

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._writer.close()

    def _claim(self, holder_id: str) -> ReturningUpdate[int]:
        now = self._clock.wall()
        least = epoch_at(now)
        # Followers would reject an epoch from a clock far ahead.
        is_unusable = or_(_epoch.c.epoch < least, _epoch.c.epoch >= latest_believable(now))
        following = case((is_unusable, least), else_=_epoch.c.epoch + 1)
        return update(_epoch).values(epoch=following, controller_id=holder_id, beat=0).returning(_epoch.c.epoch)
