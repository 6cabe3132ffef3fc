"""Files of ledgers whose tables are there already: to make them takes longer than most tests ask anything of them."""

import tempfile
from functools import cache
from pathlib import Path

from sqlalchemy import make_url

from pentimento.stores.ledger import cache_tables, journal_tables
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.tenant_ledger import migrate_tenants


def lay_tables(url: str) -> None:
    """Put a file with the newest tables of journal and cache, all empty, where an SQLite `url` has a directory and no
    file yet. Whoever opens it makes the rest, an id of its own among it."""
    file = Path(str(make_url(url).database))
    if url.startswith("sqlite:") and file.parent.is_dir() and not file.exists():
        file.write_bytes(_laid())


@cache
def _laid() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ledger.sqlite")
        engine = open_engine(f"sqlite:///{file}")
        migrate(engine, "journal", journal_tables.MIGRATIONS)
        migrate_tenants(engine)
        migrate(engine, "cache", cache_tables.MIGRATIONS)
        engine.dispose()
        return file.read_bytes()
