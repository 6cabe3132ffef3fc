"""Migrate the tables of a ledger: each component has one schema version.

A migration is a list of SQL statements that both SQLite and PostgreSQL understand; `{blob}` is replaced by their byte
type. If they share no syntax, a mapping holds the statements of each by its name. A published migration never changes:
the next version is a new one at the end of the list.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, inspect, text

from pentimento.stores.errors import SchemaMismatch
from pentimento.stores.ledger.database import lift_time_limit, typed_errors

_BLOB = {"sqlite": "BLOB", "postgresql": "BYTEA"}
# Any number, as long as every start takes the same lock: two services may migrate one PostgreSQL database at once.
_MIGRATION_LOCK = 0x70656E74


@dataclass(frozen=True)
class Migration:
    """Hold the statements that lead from `version - 1` to `version`; those of one database only by its name."""

    version: int
    statements: tuple[str | Mapping[str, tuple[str, ...]], ...]

    def statements_of(self, dialect: str) -> Iterator[str]:
        """Yield the statements for that database."""
        for statement in self.statements:
            yield from (statement,) if isinstance(statement, str) else statement[dialect]


def migrate(engine: Engine, component: str, migrations: Sequence[Migration]) -> int:
    """Bring the component's tables to the newest version, all in one transaction, and return the version reached.

    Raises SchemaMismatch when the tables are newer than this build, StoreUnavailable when there is no database.
    """
    with typed_errors(), engine.begin() as connection:
        _lock(connection)
        _make_version(connection, component)
        found = _version(connection, component)
        newest = migrations[-1].version
        if found > newest:
            raise SchemaMismatch("ledger", f"{component} has schema version {found}, this build knows {newest}")
        for migration in migrations[found:]:
            _apply(connection, component, migration)
        return newest


def require_newest(engine: Engine, component: str, migrations: Sequence[Migration]) -> None:
    """Check that the component's tables have the newest version, for a caller that changes nothing. Raises
    SchemaMismatch if they have another or are missing, and StoreUnavailable if there is no database."""
    with typed_errors(), engine.connect().execution_options(reads_only=True) as connection:
        found = _version(connection, component) if inspect(connection).has_table("schema_versions") else 0
    newest = migrations[-1].version
    if found != newest:
        raise SchemaMismatch("ledger", f"{component} has schema version {found}, this build needs {newest}")


def _lock(connection: Connection) -> None:
    # No limit for the wait on another process that migrates, either.
    lift_time_limit(connection)
    # SQLite's transactions began with the write lock already.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})


def _make_version(connection: Connection, component: str) -> None:
    connection.execute(
        text("CREATE TABLE IF NOT EXISTS schema_versions (component TEXT PRIMARY KEY, version BIGINT NOT NULL)")
    )
    insert = "INSERT INTO schema_versions (component, version) VALUES (:component, 0) ON CONFLICT DO NOTHING"
    connection.execute(text(insert), {"component": component})


def _version(connection: Connection, component: str) -> int:
    select = "SELECT version FROM schema_versions WHERE component = :component"
    return int(connection.execute(text(select), {"component": component}).scalar_one_or_none() or 0)


def _apply(connection: Connection, component: str, migration: Migration) -> None:
    for statement in migration.statements_of(connection.dialect.name):
        connection.execute(text(statement.format(blob=_BLOB[connection.dialect.name])))
    update = "UPDATE schema_versions SET version = :version WHERE component = :component"
    connection.execute(text(update), {"version": migration.version, "component": component})
