"""Ledgers of earlier builds: `ledgers/` holds the SQL that writes one of the baseline versions, with some rows."""

import sqlite3
from pathlib import Path

import psycopg
from sqlalchemy import make_url, text

from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import Schema, migrate

_FOLDER = Path(__file__).parent / "ledgers"


def write_baseline(url: str) -> None:
    """Write the ledger that a build with the baseline versions left."""
    database = make_url(url)
    if database.drivername == "sqlite":
        connection = sqlite3.connect(str(database.database))
        connection.executescript((_FOLDER / "sqlite.sql").read_text())
        connection.close()
        return
    options = {name: str(value) for name, value in database.query.items()}
    with psycopg.connect(user=database.username, dbname=database.database, autocommit=True, **options) as server:
        server.execute((_FOLDER / "postgresql.sql").read_bytes())


def set_version(url: str, schema: Schema, version: int) -> None:
    """Make a ledger with these tables seem to be of that version."""
    engine = open_engine(url)
    migrate(engine, schema)
    with engine.begin() as connection:
        values = {"version": version, "component": schema.component}
        connection.execute(text("UPDATE schema_versions SET version = :version WHERE component = :component"), values)
    engine.dispose()
