"""What the journal's one thread has to read so as to know whom somebody is still to be told of."""

from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import event

from lab.fixtures.clocks import SetClock
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.journal import Journal


def plan_of_forgetting(url: str) -> list[str]:
    """Return SQLite's plan of the statement by which a journal finds what it may forget."""
    open_journal(url).close()
    engine = open_engine(url)
    sent: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *of: sent.append((of[2], of[3])))
    with closing(Journal(engine, SetClock())) as journal:
        journal.forget_finished(9e9, 5).result()
        statement, values = next(one for one in sent if "journal_webhooks" in one[0])
        with engine.connect() as connection:
            return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]


def test_who_is_untold_is_asked_once_and_of_pending_webhooks_alone(tmp_path: Path) -> None:
    plan = plan_of_forgetting(f"sqlite:///{tmp_path}/ledger.sqlite")

    of_webhooks = [step for step in plan if " journal_webhooks" in step]
    of_requests = [step for step in plan if " journal_requests" in step]
    of_pins = [step for step in plan if " journal_pins" in step]
    assert len([step for step in plan if "CORRELATED" in step]) == 2
    assert of_pins == ["SEARCH journal_pins USING INDEX sqlite_autoindex_journal_pins_1 (request_id=?)"]
    assert of_webhooks == [
        "SCAN journal_webhooks USING INDEX journal_webhooks_pending",
        "SEARCH journal_webhooks USING INDEX sqlite_autoindex_journal_webhooks_1 (request_id=?)",
    ]
    assert of_requests == ["SEARCH journal_requests USING INDEX journal_finished (finished_at<?)"]
