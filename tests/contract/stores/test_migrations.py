"""Test schema versions, on SQLite and on PostgreSQL."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, Table, Text, text

from lab.fixtures.postgresql import PostgresqlServer
from pentimento.stores.errors import SchemaMismatch
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import Schema, migrate, require_newest

_THINGS = MetaData()
_ROW = {"id": "kept"}
FIRST = Schema("things", 1, _THINGS, {Table("things", _THINGS, Column("id", Text, primary_key=True)): _ROW})
SECOND = replace(FIRST, migrations=(("ALTER TABLE things ADD COLUMN data TEXT",),))
BROKEN = replace(FIRST, migrations=((*SECOND.migrations[0], "ALTER TABLE nothing ADD COLUMN x TEXT"),))


def test_migrate_runs_each_migration_once(ledger_url: str) -> None:
    engine = open_engine(ledger_url)

    for schema in (FIRST, SECOND, SECOND):
        migrate(engine, schema)
        require_newest(engine, schema)

    with engine.connect() as connection:
        assert connection.execute(text("SELECT id, data FROM things")).all() == [("kept", None)]
    engine.dispose()


def test_migrate_failing_changes_nothing(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    migrate(engine, FIRST)

    with pytest.raises(Exception, match="ledger"):
        migrate(engine, BROKEN)

    migrate(engine, SECOND)
    engine.dispose()


@pytest.mark.server
@pytest.mark.slow
def test_migrate_has_no_time_limit(postgresql: PostgresqlServer) -> None:
    # A busy server may need this long for the preceding statements.
    engine = open_engine(f"{postgresql.new_database()}%20-cstatement_timeout%3D2000")

    migrate(engine, replace(FIRST, code={"postgresql": ("SELECT pg_sleep(2.2)",)}))

    with engine.connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "2s"
    engine.dispose()


def test_migrate_of_newer_schema_is_refused(ledger_url: str) -> None:
    engine = open_engine(ledger_url)
    migrate(engine, FIRST)
    migrate(engine, SECOND)

    with pytest.raises(SchemaMismatch, match=r"^ledger: .*version 2, this build knows 1"):
        migrate(engine, FIRST)
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


def test_singleton_tables_have_one_row(ledger_url: str) -> None:
    """A build with another key would add a second row next to an older build's."""
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
