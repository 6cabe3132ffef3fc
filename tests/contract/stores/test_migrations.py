"""Schema versions, on SQLite and on PostgreSQL."""

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from pentimento.stores.errors import SchemaMismatch
from pentimento.stores.ledger import cache_tables, fleet_tables, journal_tables, open_journal, tenant_tables
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.ledger.cache_records import CacheTotals
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import Migration, migrate
from tests.support.postgresql import PostgresqlServer

LEDGERS: dict[str, Any] = {
    "cache": cache_tables,
    "fleet": fleet_tables,
    "journal": journal_tables,
    "tenants": tenant_tables,
}
FIRST = Migration(1, ("CREATE TABLE things (id TEXT PRIMARY KEY)", "INSERT INTO things (id) VALUES ('kept')"))
SECOND = Migration(2, ("ALTER TABLE things ADD COLUMN data {blob}",))
BROKEN = Migration(2, ("ALTER TABLE things ADD COLUMN data {blob}", "ALTER TABLE nothing ADD COLUMN x TEXT"))


def test_migrate_runs_each_migration_once(ledger_url: str) -> None:
    engine = open_engine(ledger_url)

    assert migrate(engine, "things", (FIRST,)) == 1
    assert migrate(engine, "things", (FIRST, SECOND)) == 2
    assert migrate(engine, "things", (FIRST, SECOND)) == 2

    with engine.connect() as connection:
        assert connection.execute(text("SELECT id, data FROM things")).all() == [("kept", None)]
    engine.dispose()


def test_migrate_failing_changes_nothing(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    migrate(engine, "things", (FIRST,))

    with pytest.raises(Exception, match="ledger"):
        migrate(engine, "things", (FIRST, BROKEN))

    assert migrate(engine, "things", (FIRST, SECOND)) == 2
    engine.dispose()


@pytest.mark.server
@pytest.mark.slow
def test_migrate_has_no_time_limit(postgresql: PostgresqlServer) -> None:
    # As long as a busy server may take for what comes before.
    engine = open_engine(f"{postgresql.new_database()}%20-cstatement_timeout%3D2000")

    assert migrate(engine, "things", (Migration(1, ("SELECT pg_sleep(2.2)",)),)) == 1

    with engine.connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "2s"
    engine.dispose()


def test_migrate_of_newer_schema_is_refused(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    migrate(engine, "things", (FIRST, SECOND))

    with pytest.raises(SchemaMismatch, match=r"^ledger: .*version 2, this build knows 1"):
        migrate(engine, "things", (FIRST,))
    engine.dispose()


def test_migrations_of_all_ledgers_make_their_tables(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    for name, module in LEDGERS.items():
        migrate(engine, name, module.MIGRATIONS)

    found = inspect(engine)
    for table in (table for module in LEDGERS.values() for table in module._METADATA.tables.values()):
        nullable = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
        primary = set(found.get_pk_constraint(table.name)["constrained_columns"])
        assert primary == {column.name for column in table.primary_key}, table.name
        assert nullable.keys() == {column.name for column in table.columns}, table.name
        expected = {column.name: bool(column.nullable) for column in table.columns if not column.primary_key}
        assert {column: nullable[column] for column in expected} == expected, table.name
    engine.dispose()


def test_ledger_files_become_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    (tmp_path / "ledger.sqlite").touch(mode=0o644)

    ledger = open_cache_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.totals()

    os.umask(before)
    assert {path.name for path in tmp_path.iterdir()} > {"ledger.sqlite", "ledger.sqlite-wal"}
    assert [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o077] == []
    ledger.close()


def test_migrate_entries_of_first_version_get_tenants(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    migrate(engine, "cache", cache_tables.MIGRATIONS[:1])
    entry = "INSERT INTO cache_entries VALUES ('{0}', '{1}', 'c', 0, {2}, 0, '', NULL, 1, 1, 0, NULL)"
    with engine.begin() as connection:
        for number, (entry_id, pool) in enumerate((("own", "acme"), ("given", "*shared*"), ("old", "*shared*"))):
            connection.execute(text(entry.format(entry_id, pool, number)))
        connection.execute(text("INSERT INTO cache_grants VALUES ('g', '*shared*', 'globex', 'c', 'r', 1, 0, 'given')"))

    migrate(engine, "cache", cache_tables.MIGRATIONS)

    with engine.connect() as connection:
        found = connection.execute(text("SELECT entry_id, tenant FROM cache_entries ORDER BY sequence")).all()
    assert [tuple(row) for row in found] == [("own", "acme"), ("given", "globex"), ("old", "")]
    engine.dispose()


def test_migrate_entries_of_second_version_leave_cache(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    migrate(engine, "cache", cache_tables.MIGRATIONS[:2])
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO cache_state VALUES (1, 'id', 'e', 2, 1, 1, 1, 9)",
            "INSERT INTO cache_entries (entry_id, pool, compatibility_key, created_at, sequence, ancestor_depth,"
            " text_vector, object_count, size_bytes, indexed) VALUES ('e', 'acme', 'c', 5, 1, 0, '', 1, 9, 1)",
            "INSERT INTO cache_objects (key, grant_id, entry_id, digest, size_bytes) VALUES ('held', 'g', 'e', 'd', 9)",
            "INSERT INTO cache_objects (key, grant_id) VALUES ('granted', 'open')",
            "INSERT INTO cache_grants VALUES ('open', 'acme', 'acme', 'c', 'r', 1, 9e9, NULL)",
        ):
            connection.execute(text(statement))
    engine.dispose()

    ledger = open_cache_ledger(ledger_url)

    assert ledger.totals() == CacheTotals(entry_count=0, object_count=0, size_bytes=0, open_grant_count=1)
    assert (ledger.doomed_ids(9), ledger.live_entry("e")) == (["e"], None)
    ledger.forget_entries(["e"]).result()
    assert ledger.deletable_keys(9) == ["held"]
    assert ledger.check_integrity() == []
    ledger.close()


def test_migrations_are_numbered_without_a_gap() -> None:
    for module in LEDGERS.values():
        assert [migration.version for migration in module.MIGRATIONS] == list(range(1, len(module.MIGRATIONS) + 1))


def test_singleton_tables_have_one_row(ledger_url: str) -> None:
    """A build that wrote another key would add a row of its own beside an older build's."""
    open_cache_ledger(ledger_url).close()
    journal = open_journal(ledger_url)
    journal.save_plan(b"plan").result()
    journal.close()

    engine = open_engine(ledger_url)
    with engine.connect() as connection:
        found = {
            table: list(connection.scalars(text(f"SELECT singleton FROM {table}")))
            for table in ("cache_state", "journal_epoch", "journal_plan")
        }
    engine.dispose()

    assert found == {"cache_state": [1], "journal_epoch": [1], "journal_plan": [1]}
