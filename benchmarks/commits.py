"""Commits of results, counted where they happen: triggers in the frontdoor's journal write a row for each.

The state of a request tells only that it was completed, not how often. A trigger runs inside the transaction that
commits, whichever process and whichever code writes, so that no second commit goes unseen, be it the same picture.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

_TABLE = """CREATE TABLE IF NOT EXISTS benchmark_commits (
    request_id TEXT NOT NULL, fencing_token INTEGER NOT NULL, image_key TEXT, image_digest TEXT)"""
_TRIGGER = """CREATE TRIGGER IF NOT EXISTS benchmark_{name} AFTER {change} ON journal_requests
    WHEN NEW.state = 'completed'
    BEGIN
        INSERT INTO benchmark_commits VALUES (NEW.request_id, NEW.newest_token, NEW.image_key, NEW.image_digest);
    END"""
BUSY_S = 30.0


def count_commits(journal: Path) -> None:
    """From now on every commit of a result in this journal is counted, across restarts of its frontdoor."""
    with closing(sqlite3.connect(journal, timeout=BUSY_S)) as connection, connection:
        connection.execute(_TABLE)
        connection.execute(_TRIGGER.format(name="updates", change="UPDATE OF state, image_digest"))
        connection.execute(_TRIGGER.format(name="inserts", change="INSERT"))


def commits_by_request(journal: Path) -> Counter[str]:
    """How often each request's result was committed. sqlite3.OperationalError when nothing counts them."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=BUSY_S)) as connection:
        return Counter(dict(connection.execute("SELECT request_id, count(*) FROM benchmark_commits GROUP BY 1")))
