"""The controllers' ledger: who of several leads, the last plan of a leader, and what was registered by hand.

Each change is one statement whose WHERE clause holds its condition, so that it stays right when two controllers (a
leader and a standby, or one that was stopped and woke up) write to the same ledger.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sqlalchemy import Connection, Engine, and_, case, delete, insert, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.epochs import LeaseState, epoch_at, latest_believable
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import RegisteredRow
from pentimento.stores.ledger import fleet_tables as tables
from pentimento.stores.ledger.database import insert_unless_present, open_engine
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.writer import GroupCommitWriter

T = TypeVar("T")

_epoch = tables.epoch
_plan = tables.plan
_registered = tables.registered


def open_fleet_ledger(url: str, clock: Clock | None = None) -> "FleetLedger":
    """Connect to the ledger at `url` (as in `open_engine`), migrate and return it. Raises StoreUnavailable,
    SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    migrate(engine, "fleet", tables.MIGRATIONS)
    return FleetLedger(engine, clock or SystemClock())


class FleetLedger:
    """The tables of controllers. Every method returns at once; its future resolves after the commit that makes the
    answer durable, and fails with StoreFull or StoreUnavailable. All but `lease`, `load_plan` and `registered` change
    state; each may be called again with the same arguments."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._writer = GroupCommitWriter(engine, "fleet-ledger")
        self._clock = clock

    def claim_epoch(self, controller_id: str) -> "Future[int]":
        """Claim an epoch and return it: larger than every one claimed before that followers believe. Its holder leads
        from then on."""
        statement = self._claim(controller_id)
        return self._submit(lambda connection: int(connection.execute(statement).scalar_one()))

    def lease(self) -> "Future[LeaseState]":
        """Return which epoch leads, and its holder's beats."""
        statement = select(_epoch.c.epoch, _epoch.c.beat)
        return self._submit(lambda connection: LeaseState(*connection.execute(statement).one()))

    def beat(self, epoch: int) -> "Future[bool]":
        """Record that the holder of the epoch is alive; False when a newer epoch was claimed: it has to stop."""
        statement = update(_epoch).where(_epoch.c.epoch == epoch).values(beat=_epoch.c.beat + 1)
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    def take_over(self, controller_id: str, seen: LeaseState) -> "Future[int | None]":
        """Claim an epoch from a holder that has not beaten since `seen`; None when it has, or somebody was faster."""
        is_as_seen = and_(_epoch.c.epoch == seen.epoch, _epoch.c.beat == seen.beat)
        statement = self._claim(controller_id).where(is_as_seen)
        return self._submit(lambda connection: connection.execute(statement).scalar_one_or_none())

    def rise(self, epoch: int, to: int) -> "Future[bool]":
        """Give the holder of an epoch a larger one; False when a newer one than its own was claimed."""
        statement = update(_epoch).where(or_(_epoch.c.epoch == epoch, _epoch.c.epoch == to)).values(epoch=to)
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    def save_plan(self, version: PlanVersion, plan: bytes) -> "Future[bool]":
        """Keep a leader's plan in place of an older one; False, and nothing changed, when a newer epoch than the plan's
        was claimed or a newer plan is kept."""
        return self._submit(lambda connection: _save_plan(connection, version, plan))

    def load_plan(self) -> "Future[bytes | None]":
        """Return the plan last saved."""
        return self._submit(lambda connection: connection.execute(select(_plan.c.plan)).scalar_one_or_none())

    def register(self, row: RegisteredRow) -> "Future[bool]":
        """Register something; False, and nothing changed, where the same kind and name is there with another digest or
        document."""
        values = {**vars(row), "registered_at": self._clock.wall()}
        return self._submit(lambda connection: _register(connection, row, values))

    def unregister(self, kind: str, name: str) -> "Future[bool]":
        """Take a registration away; False where there was none."""
        statement = delete(_registered).where(_registered.c.kind == kind, _registered.c.name == name)
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    def registered(self) -> "Future[list[RegisteredRow]]":
        """Return everything that is registered, ordered by kind and name."""
        columns = (_registered.c.kind, _registered.c.name, _registered.c.digest, _registered.c.document)
        statement = select(*columns).order_by(_registered.c.kind, _registered.c.name)
        return self._submit(lambda connection: [RegisteredRow(*row) for row in connection.execute(statement)])

    def close(self) -> None:
        """Commit what is queued and let go of the database."""
        self._writer.close()

    def _claim(self, controller_id: str) -> ReturningUpdate[int]:
        now = self._clock.wall()
        least = epoch_at(now)
        # Followers would refuse what a clock far ahead of theirs left.
        is_unusable = or_(_epoch.c.epoch < least, _epoch.c.epoch >= latest_believable(now))
        following = case((is_unusable, least), else_=_epoch.c.epoch + 1)
        return update(_epoch).values(epoch=following, controller_id=controller_id, beat=0).returning(_epoch.c.epoch)

    def _submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        return self._writer.submit(work)


def _save_plan(connection: Connection, version: PlanVersion, plan: bytes) -> bool:
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


def _register(connection: Connection, row: RegisteredRow, values: dict[str, object]) -> bool:
    if insert_unless_present(connection, _registered, values):
        return True
    same = select(_registered.c.name).where(
        _registered.c.kind == row.kind,
        _registered.c.name == row.name,
        _registered.c.digest == row.digest,
        _registered.c.document == row.document,
    )
    return connection.execute(same).first() is not None
