"""Make and migrate the tables of a ledger: each component has one schema version.

A new ledger gets the newest tables at once. An older one gets the migrations from its version on; the first that this
build migrates is the baseline. A published migration never changes: the next version is a new one at the end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Table, insert, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from pentimento.stores.errors import SchemaMismatch
from pentimento.stores.ledger.columns import indexes_of
from pentimento.stores.ledger.database import lift_time_limit
from pentimento.stores.ledger.errors import typed_errors

# Any number, as long as every start takes the same lock: two services may migrate one PostgreSQL database at once.
_MIGRATION_LOCK = 0x70656E74
# The last commit that migrates ledgers from before the baselines.
_UPGRADED_BY = "commit 50ffb66f"


@dataclass(frozen=True)
class Schema:
    """Describe the newest tables of a component. `first_rows`: a row of each table that is never empty; `code`: SQL
    functions and triggers by dialect. Each of `migrations` holds the statements that lead one version further, from
    `baseline` on, in the syntax that SQLite and PostgreSQL share."""

    component: str
    baseline: int
    tables: MetaData
    first_rows: Mapping[Table, Mapping[str, Any]] = field(default_factory=dict)
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    migrations: tuple[tuple[str, ...], ...] = ()

    @property
    def newest(self) -> int:
        """Return the version of `tables`."""
        return self.baseline + len(self.migrations)


def migrate(engine: Engine, schema: Schema) -> None:
    """Bring the component's tables to the newest version, all in one transaction.

    Raises SchemaMismatch when the tables are newer than this build or older than its baseline, StoreUnavailable when
    there is no database.
    """
    with typed_errors(), engine.begin() as connection:
        _lock(connection)
        found = _version(connection, schema.component)
        if found == 0:
            _make(connection, schema)
        elif found > schema.newest:
            raise _mismatch(schema, found, f"knows {schema.newest}")
        elif found < schema.baseline:
            wanted = f"migrates from {schema.baseline} on; start {_UPGRADED_BY} once, which upgrades it"
            raise _mismatch(schema, found, wanted)
        else:
            for statements in schema.migrations[found - schema.baseline :]:
                _run(connection, statements)
        update = "UPDATE schema_versions SET version = :version WHERE component = :component"
        connection.execute(text(update), {"version": schema.newest, "component": schema.component})


def require_newest(engine: Engine, schema: Schema) -> None:
    """Check that the component's tables have the newest version, for a caller that changes nothing. Raises
    SchemaMismatch if they have another or are missing, and StoreUnavailable if there is no database."""
    with typed_errors(), engine.connect().execution_options(reads_only=True) as connection:
        found = _found(connection, schema.component) if inspect(connection).has_table("schema_versions") else 0
    if found != schema.newest:
        raise _mismatch(schema, found, f"needs {schema.newest}")


def _mismatch(schema: Schema, found: int, wanted: str) -> SchemaMismatch:
    return SchemaMismatch("ledger", f"{schema.component} has schema version {found}, this build {wanted}")


def _lock(connection: Connection) -> None:
    # No limit for the wait on another process that migrates, either.
    lift_time_limit(connection)
    # SQLite's transactions began with the write lock already.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})


def _version(connection: Connection, component: str) -> int:
    """Return the component's version; 0, with a row for it, if it has no tables yet."""
    connection.execute(
        text("CREATE TABLE IF NOT EXISTS schema_versions (component TEXT PRIMARY KEY, version BIGINT NOT NULL)")
    )
    first = "INSERT INTO schema_versions (component, version) VALUES (:component, 0) ON CONFLICT DO NOTHING"
    connection.execute(text(first), {"component": component})
    return _found(connection, component)


def _found(connection: Connection, component: str) -> int:
    select = "SELECT version FROM schema_versions WHERE component = :component"
    return int(connection.execute(text(select), {"component": component}).scalar_one_or_none() or 0)


def _make(connection: Connection, schema: Schema) -> None:
    for table in schema.tables.sorted_tables:
        connection.execute(CreateTable(table))
        for index in indexes_of(table):
            connection.execute(CreateIndex(index))
    _run(connection, schema.code.get(connection.dialect.name, ()))
    for table, row in schema.first_rows.items():
        connection.execute(insert(table), dict(row))


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)
