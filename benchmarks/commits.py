"""Count commits of results in the frontdoor's journal, by triggers that write a row for each.

A request's state says that it completed, not how often. A trigger runs inside the committing transaction, for any
process and any code, so that it counts a second commit even of the same image.
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
    """Count every later commit of a result in this journal, across restarts of its frontdoor."""
    with closing(sqlite3.connect(journal, timeout=BUSY_S)) as connection, connection:
        connection.execute(_TABLE)
        connection.execute(_TRIGGER.format(name="updates", change="UPDATE OF state, image_digest"))
        connection.execute(_TRIGGER.format(name="inserts", change="INSERT"))


def commits_by_request(journal: Path) -> Counter[str]:
    """Return each request's number of commits. Raises sqlite3.OperationalError if nothing counts them."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=BUSY_S)) as connection:
        return Counter(dict(connection.execute("SELECT request_id, count(*) FROM benchmark_commits GROUP BY 1")))
