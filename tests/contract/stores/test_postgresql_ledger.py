"""Test failures that only a database server has."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Barrier
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from lab.fixtures.postgresql import PostgresqlServer
from pentimento.domain.cache import CacheHolding
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.stores.errors import StoreUnavailable, UnansweredCommit
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.journal.records import AcceptedRequest
from pentimento.stores.ledger.writer import GroupCommitWriter
from tests.contract.stores.cache_records import add, live
from tests.support.watched_statements import watched_statements


def test_broken_connection_fails_only_its_commit(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    journal = open_journal(url)
    journal.claim_epoch("a").result()

    postgresql.break_connections()
    record = AcceptedRequest("r1", "tenant", b"", "hash", 1.0)
    try:
        journal.accept(record).result()
    except StoreUnavailable:
        journal.accept(record).result()

    assert journal.get("r1", "tenant").result() is not None
    journal.close()


def test_client_leaves_standby_for_new_primary(postgresql: PostgresqlServer) -> None:
    """A connection may outlive the failover: no statement writes through it again."""
    writer = GroupCommitWriter(open_engine(postgresql.new_database()), "test")
    writer.submit(lambda connection: connection.execute(text("CREATE TABLE t (x BIGINT)"))).result()
    writer.submit(lambda connection: connection.execute(text("SET default_transaction_read_only = on"))).result()

    with pytest.raises(StoreUnavailable):
        writer.submit(lambda connection: connection.execute(text("INSERT INTO t (x) VALUES (1)"))).result()

    writer.submit(lambda connection: connection.execute(text("INSERT INTO t (x) VALUES (1)"))).result()
    writer.close()


def test_read_only_server_is_unavailable(postgresql: PostgresqlServer) -> None:
    engine = open_engine(f"{postgresql.new_database()}%20-cdefault_transaction_read_only%3Don")

    with pytest.raises(StoreUnavailable), typed_errors(), engine.connect():
        pass
    engine.dispose()


def test_unanswered_commit_is_reported_as_unknown(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(postgresql.new_database())
    writer = GroupCommitWriter(engine, "test")
    writer.submit(lambda connection: connection.execute(text("CREATE TABLE t (x BIGINT)"))).result()

    def commit_without_answer(connection: psycopg.Connection[object]) -> None:
        connection.commit()
        raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as patch, pytest.raises(UnansweredCommit):
        patch.setattr(engine.dialect, "do_commit", commit_without_answer)
        writer.submit(lambda connection: connection.execute(text("INSERT INTO t (x) VALUES (1)"))).result()

    counted = writer.submit(lambda connection: connection.execute(text("SELECT count(*) FROM t")).scalar_one())
    assert counted.result() == 1
    writer.close()


def test_transaction_ended_before_commit_is_not_stored(postgresql: PostgresqlServer) -> None:
    writer = GroupCommitWriter(open_engine(postgresql.new_database()), "test")

    def fails(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StoreUnavailable) as failed:
        writer.submit(fails).result()

    assert not isinstance(failed.value, UnansweredCommit)
    writer.close()


def test_absent_server_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable):
        open_journal("postgresql+psycopg://nobody@/nothing?host=/nonexistent")


def test_two_services_migrate_one_database_at_once(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    with ThreadPoolExecutor(4) as threads:
        journals = list(threads.map(open_journal, [url] * 4))

    assert len({journal.claim_epoch("a").result() for journal in journals}) == 4
    assert len({journal.identity().result() for journal in journals}) == 1
    for journal in journals:
        journal.close()


def test_deadlocked_transaction_is_retried(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)"))
        connection.execute(text("INSERT INTO counters (name, value) VALUES ('a', 0), ('b', 0)"))
    engine.dispose()
    both_hold_one = Barrier(2)

    def add_to(names: str) -> Callable[[Connection], None]:
        waited: list[str] = []

        def work(connection: Connection) -> None:
            for name in names:
                connection.execute(text("UPDATE counters SET value = value + 1 WHERE name = :name"), {"name": name})
                if not waited:
                    waited.append(name)
                    both_hold_one.wait(60)

        return work

    writers = [GroupCommitWriter(open_engine(url), "test") for _ in range(2)]
    for future in [writers[0].submit(add_to("ab")), writers[1].submit(add_to("ba"))]:
        future.result()

    counted = writers[0].submit(lambda connection: list(connection.scalars(text("SELECT value FROM counters"))))
    assert counted.result() == [2, 2]
    for writer in writers:
        writer.close()


def test_stopped_process_releases_rows_of_its_transaction(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_database()
    stopped = open_engine(f"{url}%20-cidle_in_transaction_session_timeout%3D200")
    standby = open_engine(url)
    with standby.begin() as connection:
        connection.execute(text("CREATE TABLE leases (holder TEXT)"))
        connection.execute(text("INSERT INTO leases (holder) VALUES ('nobody')"))

    held = holding(stopped, "UPDATE leases SET holder = 'stopped'")
    with standby.begin() as connection:
        connection.execute(text("UPDATE leases SET holder = 'standby'"))

    with standby.begin() as connection:
        assert connection.scalars(text("SELECT holder FROM leases")).all() == ["standby"]
    held.invalidate()
    held.close()
    for engine in (stopped, standby):
        engine.dispose()


def holding(engine: Engine, statement: str) -> Connection:
    """Return a transaction that has run the statement. The server may end a transaction that was idle too long; then
    retry."""
    while True:
        with suppress(OperationalError):
            connection = engine.connect()
            connection.execute(text(statement))
            return connection


@pytest.mark.parametrize("of_items", [False, True])
@pytest.mark.parametrize("kept_count", [0, 6])
def test_two_gateways_at_once_evict_the_excess_only_once(
    postgresql: PostgresqlServer, of_items: bool, kept_count: int
) -> None:
    url = postgresql.new_database()
    with closing(open_cache_ledger(url)) as ours, closing(open_cache_ledger(url)) as theirs:
        entry_ids = [add(ours, f"g{number}", (5,)) for number in range(10)]
        limits = CacheLimits(100, 10_000, tenant_bytes={"tenant": kept_count * 10})
        others: list[Future[int]] = []

        def beside_another(held: Mapping[str, CacheHolding]) -> str | None:
            if not others:
                evict = theirs.evict_items if of_items else theirs.evict
                others.append(evict(lambda held: gives_way(held, limits), grace_s=0))
                while not (others[0].done() or waiting_count(url)):
                    pass
            return gives_way(held, limits)

        evicted = (ours.evict_items if of_items else ours.evict)(beside_another, grace_s=0).result()

        assert evicted + others[0].result() == 10 - kept_count
        assert len(live(ours, entry_ids)) == kept_count


def waiting_count(url: str) -> int:
    """Return the number of transactions that wait for another's lock."""
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            waiting = text("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
            return int(connection.execute(waiting).scalar_one())
    finally:
        engine.dispose()


def noted_selects() -> tuple[list[tuple[str, Any]], Callable[[Any, str, Any], None]]:
    """Return a list, and a callback that adds SELECT statements with their parameters to it."""
    made = list[tuple[str, Any]]()
    return made, lambda _, text, parameters: made.append((text, parameters)) if text.startswith("SELECT") else None


def plans_of(cursor: Any, statements: list[tuple[str, Any]]) -> list[str]:
    """Return the plans of a server with little memory for one hash table."""
    cursor.execute("SET work_mem = '64kB'")
    return [
        line
        for statement, parameters in statements
        for (line,) in cursor.execute(f"EXPLAIN {statement}", parameters).fetchall()
    ]


SEARCHES: dict[str, Callable[[CacheLedger], object]] = {
    "objects to delete": lambda ledger: ledger.deletable_keys(10),
    "objects that a pin keeps": lambda ledger: ledger.kept_by_pins(),
    "contradictions": lambda ledger: ledger.check_integrity(),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_cache_search_compares_no_row_with_whole_table(
    postgresql: PostgresqlServer, search: Callable[[CacheLedger], object]
) -> None:
    """A large cache outgrows the server's memory for one hash table."""
    url = postgresql.new_database()
    made, note = noted_selects()

    with closing(open_cache_ledger(url)) as ledger, closing(ledger._engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute("INSERT INTO cache_pins SELECT 't', 'r' || i, 'k' || i, 1e12 FROM generate_series(1, 5000) i")
        cursor.execute(
            "INSERT INTO cache_entries (entry_id, pool, tenant, created_at, sequence, ancestor_depth, text_vector,"
            " object_count, size_bytes, rank_score, rank_tie, indexed, request_id, repeat_key)"
            " SELECT 'e' || i, 't', 't', 1, i, 0, '', 1, 1, 0, i, 1, '', '' FROM generate_series(1, 5000) i"
        )
        cursor.execute(
            "INSERT INTO cache_objects (key, grant_id, entry_id, compatibility_key, size_bytes, tenant, delete_after)"
            " SELECT 'k' || i, 'g' || i, 'e' || i, 'c', 1, 't', i % 2 FROM generate_series(1, 5000) i"
        )
        cursor.execute("ANALYZE cache_pins, cache_entries, cache_objects")
        connection.commit()
        with watched_statements(note):
            search(ledger)
        plans = plans_of(cursor, made)

    assert plans
    assert [line for line in plans if "SubPlan" in line] == []


def test_count_at_start_has_no_statement_timeout(postgresql: PostgresqlServer) -> None:
    """Counting two million finished requests took ten seconds: with a timeout, no frontdoor would start or take
    over."""
    limits: dict[str, str] = {}

    def look(cursor: Any, text: str, _parameters: Any) -> None:
        if "GROUP BY" in text:
            limits[text] = cursor.execute("SHOW statement_timeout").fetchone()[0]

    with closing(open_journal(postgresql.new_database())) as journal:
        with watched_statements(look):
            assert journal.objects.kept().result() == []
        with journal._reader._engine.connect() as connection:
            after = connection.execute(text("SHOW statement_timeout")).scalar_one()

    assert list(limits.values()) == ["0", "0"]
    assert after == "10s"


PINS = "INSERT INTO journal_pins SELECT 'r' || i, 't', 1e12, 1 FROM generate_series(1, 5000) i"
WEBHOOKS = (
    "INSERT INTO journal_webhooks (request_id, url, state, try_count, next_at, error, request_count, told_id, last_id)"
    " SELECT 'r' || i, 'https://a', 'pending', 0, 0, '', 0, CASE i % 2 WHEN 1 THEN 'r' || i ELSE '' END,"
    " CASE i % 2 WHEN 1 THEN 'r' || i || '-1' ELSE '' END FROM generate_series(1, 5000) i"
)


@pytest.mark.parametrize("others", [PINS, WEBHOOKS], ids=["pins", "webhooks"])
def test_forget_finished_compares_no_request_with_all_pins_or_webhooks(
    postgresql: PostgresqlServer, others: str
) -> None:
    """Pins or webhooks may outgrow the server's memory for one hash table."""
    url = postgresql.new_database()
    made, note = noted_selects()

    with closing(open_journal(url)) as journal, closing(journal._reader._engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "INSERT INTO journal_requests (request_id, tenant, body, body_hash, accepted_at, frontdoor_id,"
            " frontdoor_epoch, state, newest_token, newest_epoch, attempt_count, error_reason, error_message,"
            " finished_at, body_format, cascade_stage, detached)"
            " SELECT 'r' || i, 't', '', '', i, 'f', 1, 'completed', 1, 1, 1, '', '', i, 1, 0, 0"
            " FROM generate_series(1, 5000) i"
        )
        cursor.execute(others)
        cursor.execute("ANALYZE journal_requests, journal_pins, journal_webhooks")
        connection.commit()
        with watched_statements(note):
            assert journal.forget_finished(1e6, 10).result() == []
        plan = plans_of(cursor, made)

    assert [line for line in plan if "Anti Join" in line]
    assert [line for line in plan if "Materialize" in line or "SubPlan" in line] == []
