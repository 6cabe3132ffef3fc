"""Record every change of a journal's requests by triggers in its database, for all frontdoors that use it."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from lab.runs.request_history import JournalEvent
from pentimento.stores.ledger.database import open_engine

_COMMIT = "commit"
# The change that fires each event. A commit that repeats the same image is none, nor is a removed image.
_EVENTS = {
    "accept": ("INSERT", "NEW.request_id <> ''"),
    "start": ("UPDATE", "NEW.newest_token <> OLD.newest_token"),
    _COMMIT: (
        "UPDATE",
        "NEW.state = 'completed' AND NEW.image_key <> '' AND (OLD.state <> NEW.state"
        " OR OLD.image_key <> NEW.image_key OR OLD.image_digest <> NEW.image_digest)",
    ),
    "end": ("UPDATE", "NEW.state IN ('failed', 'cancelled', 'expired') AND OLD.state <> NEW.state"),
}
_TABLE = """CREATE TABLE IF NOT EXISTS benchmark_events (
    number {number}, at_s DOUBLE PRECISION NOT NULL, name TEXT NOT NULL, request_id TEXT NOT NULL,
    idempotency_key TEXT, token BIGINT NOT NULL, digest TEXT, state TEXT NOT NULL)"""
_NOTE = """INSERT INTO benchmark_events (at_s, name, request_id, idempotency_key, token, digest, state) VALUES
    ({now}, {name}, NEW.request_id, NEW.idempotency_key, NEW.newest_token, NEW.image_digest, NEW.state);"""
_ROWS = "SELECT name, request_id, idempotency_key, token, digest, state, at_s FROM benchmark_events ORDER BY number"


def record_events(ledger_url: str) -> None:
    """Record every later change of this journal's requests, across restarts of its frontdoor."""
    with transaction(ledger_url) as connection:
        of_postgresql = connection.dialect.name == "postgresql"
        number = "BIGSERIAL PRIMARY KEY" if of_postgresql else "INTEGER PRIMARY KEY"
        connection.execute(text(_TABLE.format(number=number)))
        for statement in _of_postgresql() if of_postgresql else _of_sqlite():
            connection.exec_driver_sql(statement)


def _of_postgresql() -> Iterator[str]:
    note = _NOTE.format(now="extract(epoch FROM clock_timestamp())", name="TG_ARGV[0]")
    yield (
        "CREATE OR REPLACE FUNCTION benchmark_note() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {note} RETURN NULL; END $$"
    )
    for name, (change, condition) in _EVENTS.items():
        yield (
            f"CREATE OR REPLACE TRIGGER benchmark_{name} AFTER {change} ON journal_requests"
            f" FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION benchmark_note('{name}')"
        )


def _of_sqlite() -> Iterator[str]:
    for name, (change, condition) in _EVENTS.items():
        # Days from noon; milliseconds are its finest unit.
        note = _NOTE.format(now="(julianday('now') - 2440587.5) * 86400.0", name=f"'{name}'")
        yield (
            f"CREATE TRIGGER IF NOT EXISTS benchmark_{name} AFTER {change} ON journal_requests"
            f" WHEN {condition} BEGIN {note} END"
        )


def events_of(ledger_url: str) -> tuple[list[JournalEvent], float]:
    """Return the events in the order of their transactions, and the time in seconds at which they were read."""
    with transaction(ledger_url) as connection:
        rows = connection.execute(text(_ROWS)).all()
    found = []
    for name, request_id, key, token, digest, state, at_s in rows:
        values = {"accept": request_id, "start": token, _COMMIT: (token, digest), "end": state}
        found.append(JournalEvent(key or request_id, request_id, name, values[name], at_s))
    return found, time.time()


def commits_by_request(ledger_url: str) -> Counter[str]:
    """Return the number of different results that were committed for each request."""
    return Counter(event.request_id for event in events_of(ledger_url)[0] if event.name == _COMMIT)


@contextmanager
def transaction(ledger_url: str) -> Iterator[Connection]:
    """Connect to a database for one transaction."""
    engine = open_engine(ledger_url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
