"""Hold what the parts of the cache's ledger share: its writer, its engine for reads, and the lock of its one row."""

from sqlalchemy import Connection, Engine, bindparam, update

from pentimento.domain.clock import Clock
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.writer import GroupCommitWriter

_state = tables.state
_TAKE_TICKS = Statement(update(_state).values(tick=_state.c.tick + bindparam("count")).returning(_state.c.tick))


class CachePart:
    """Change the cache's tables through one writer, and read them on separate connections. Changes return futures;
    futures and reads fail with StoreFull or StoreUnavailable."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._writer = GroupCommitWriter(engine, "cache-ledger")
        self._submit = self._writer.submit
        self._removal_count = 0

    @property
    def removal_count(self) -> int:
        """Return how often this process took entries or their objects out of service: live entries read before the last
        time may be stale."""
        return self._removal_count

    def _note_removal(self) -> None:
        # Only the writer's thread calls this.
        self._removal_count += 1


def take_ticks(connection: Connection, count: int) -> int:
    """Take `count` ticks of the cache's clock, and return the first one. Locks the cache's one row until the commit."""
    return int(_TAKE_TICKS.scalar(connection, count=count)) - count + 1


def lock(connection: Connection) -> None:
    """Lock the cache's one row until the commit: gateways over one ledger change it one after the other."""
    take_ticks(connection, 0)
