"""Ledgers that seem to be of another version."""

from sqlalchemy import text

from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import Schema, migrate


def set_version(url: str, schema: Schema, version: int) -> None:
    """Make a ledger with these tables seem to be of that version."""
    engine = open_engine(url)
    migrate(engine, schema)
    with engine.begin() as connection:
        values = {"version": version, "component": schema.component}
        connection.execute(text("UPDATE schema_versions SET version = :version WHERE component = :component"), values)
    engine.dispose()
