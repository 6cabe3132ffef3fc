"""The writer thread makes one commit for many jobs, and each job fails alone."""

import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event, text

from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.stores.errors import StoreFull, StoreUnavailable, UnansweredCommit
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import LedgerContention
from pentimento.stores.ledger.writer import GroupCommitWriter, JobPart


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER PRIMARY KEY, data BLOB)"))
    return engine


@pytest.fixture
def writer(engine: Engine) -> Iterator[GroupCommitWriter]:
    writer = GroupCommitWriter(engine, "test")
    yield writer
    writer.close()


def insert(connection: Connection, x: int, data: bytes = b"") -> int:
    connection.execute(text("INSERT INTO t (x, data) VALUES (:x, :data)"), {"x": x, "data": data})
    return x


def rows(connection: Connection) -> list[int]:
    return list(connection.scalars(text("SELECT x FROM t ORDER BY x")))


def busy(writer: GroupCommitWriter) -> threading.Event:
    """Return with the writer at work on a job that ends once the event is set."""
    running, go_on = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        running.set()
        go_on.wait(60)

    writer.submit(hold)
    assert running.wait(60)
    return go_on


def test_submit_during_commit_shares_the_next(writer: GroupCommitWriter, engine: Engine) -> None:
    commits = []
    event.listen(engine, "commit", commits.append)
    go_on = busy(writer)
    others = [writer.submit(lambda connection, x=x: insert(connection, x)) for x in range(50)]
    go_on.set()

    assert [other.result() for other in others] == list(range(50))
    assert len(commits) == 2


def counting_down(left: int) -> JobPart:
    """Return a part that inserts `left` and counts one, followed by parts down to 1."""

    def part(connection: Connection) -> tuple[int, JobPart | None]:
        insert(connection, left)
        return 1, counting_down(left - 1) if left > 1 else None

    return part


def test_submit_in_parts_commits_each_part(writer: GroupCommitWriter, engine: Engine) -> None:
    commits, told = list[object](), list[None]()
    event.listen(engine, "commit", commits.append)

    counted = writer.submit_in_parts(counting_down(5), lambda: told.append(None)).result(60)

    assert counted == len(commits) == len(told) == 5
    assert writer.submit(rows).result() == [1, 2, 3, 4, 5]


def test_submit_in_parts_lets_others_between(writer: GroupCommitWriter) -> None:
    seen: list[list[int]] = []

    def first(connection: Connection) -> tuple[int, JobPart | None]:
        insert(connection, 9)
        writer.submit(lambda connection: seen.append(rows(connection)))
        return 1, counting_down(3)

    assert writer.submit_in_parts(first).result(60) == 4
    assert seen == [[9]]


def test_submit_in_parts_failing_keeps_earlier_parts(writer: GroupCommitWriter) -> None:
    writer.submit(lambda connection: insert(connection, 2)).result()

    with pytest.raises(Internal, match="PRIMARYKEY"):
        writer.submit_in_parts(counting_down(4)).result(60)

    assert writer.submit(rows).result() == [2, 3, 4]


def test_close_ends_long_job_between_parts(engine: Engine) -> None:
    writer, running, closing = GroupCommitWriter(engine, "test"), threading.Event(), threading.Event()

    def first(connection: Connection) -> tuple[int, JobPart | None]:
        running.set()
        closing.wait(60)
        return 1, counting_down(3)

    job = writer.submit_in_parts(first)
    running.wait(60)
    closer = threading.Thread(target=writer.close)
    closer.start()
    with pytest.raises(StoreUnavailable):
        while True:
            writer.submit(rows)
    closing.set()
    closer.join(60)

    with pytest.raises(StoreUnavailable, match="closed"):
        job.result(60)


def test_commit_failing_in_sqlite_is_not_in(
    writer: GroupCommitWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable) as failed:
        patch.setattr(engine.dialect, "do_commit", fail)
        writer.submit(lambda connection: insert(connection, 1)).result()

    assert not isinstance(failed.value, UnansweredCommit)
    assert writer.submit(rows).result() == []


def test_submit_failing_undoes_only_itself(writer: GroupCommitWriter) -> None:
    def fails(connection: Connection) -> None:
        insert(connection, 2)
        raise InvalidArgument.of("x", "is wrong")

    def inserts(x: int) -> Callable[[Connection], object]:
        return lambda connection: insert(connection, x)

    told: list[int] = []
    go_on = busy(writer)
    jobs = [writer.submit(job, lambda n=n: told.append(n)) for n, job in enumerate((inserts(1), fails, inserts(3)))]
    go_on.set()

    with pytest.raises(InvalidArgument):
        jobs[1].result()
    assert writer.submit(rows).result() == [1, 3]
    assert told == [0, 2]


def test_submit_on_full_disk_is_store_full(writer: GroupCommitWriter) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreFull):
            writer.submit(lambda connection: insert(connection, 1, bytes(1_000_000))).result()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert writer.submit(lambda connection: insert(connection, 2)).result() == 2
    assert writer.submit(rows).result() == [2]


def test_submit_cancelled_is_not_run(writer: GroupCommitWriter) -> None:
    go_on = busy(writer)
    cancelled = writer.submit(lambda connection: insert(connection, 1))
    assert cancelled.cancel()
    go_on.set()

    assert writer.submit(rows).result() == []


def test_writer_without_jobs_commits_nothing(engine: Engine) -> None:
    begun: list[object] = []
    event.listen(engine, "begin", begun.append)

    GroupCommitWriter(engine, "test").close()

    assert begun == []


def test_submit_error_hides_values(writer: GroupCommitWriter) -> None:
    writer.submit(lambda connection: insert(connection, 1)).result()

    with pytest.raises(Internal) as failure:
        writer.submit(lambda connection: insert(connection, 1, b"secret prompt")).result()

    assert "secret" not in str(failure.value)


def test_group_has_256_jobs_at_most(writer: GroupCommitWriter, engine: Engine) -> None:
    commits = []
    event.listen(engine, "commit", commits.append)
    go_on = busy(writer)
    jobs = [writer.submit(rows) for _ in range(257)]
    go_on.set()
    for job in jobs:
        job.result()

    assert len(commits) == 3


class Loser:
    """A job that loses a given number of times against other transactions."""

    def __init__(self, loses_count: int) -> None:
        self._left_count = loses_count
        self.run_count = 0

    def __call__(self, connection: Connection) -> int:
        self.run_count += 1
        self._left_count -= 1
        if self._left_count >= 0:
            raise LedgerContention("ledger", "another transaction won")
        return insert(connection, 1)


def test_submit_losing_contention_runs_again(writer: GroupCommitWriter) -> None:
    assert writer.submit(Loser(3)).result() == 1
    assert writer.submit(rows).result() == [1]


def test_submit_losing_four_times_raises_contention(writer: GroupCommitWriter) -> None:
    job = Loser(10)

    with pytest.raises(LedgerContention):
        writer.submit(job).result()

    assert job.run_count == 4


def test_writer_thread_is_daemon(writer: GroupCommitWriter) -> None:
    assert writer._thread.daemon


def test_close_releases_database(engine: Engine, tmp_path: Path) -> None:
    writer = GroupCommitWriter(engine, "test")
    writer.submit(lambda connection: insert(connection, 1)).result()

    for _ in range(2):
        writer.close()

    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
    with pytest.raises(StoreUnavailable, match=r"^ledger cannot be reached: it is closed"):
        writer.submit(rows)


def test_submit_failing_alone_undoes_itself_and_runs_once(writer: GroupCommitWriter) -> None:
    run_count = 0

    def fails(connection: Connection) -> None:
        nonlocal run_count
        run_count += 1
        insert(connection, 2)
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError):
        writer.submit(fails).result()
    run_alone_count = run_count
    assert writer.submit(rows).result() == []
    go_on = busy(writer)
    good, bad = writer.submit(lambda connection: insert(connection, 1)), writer.submit(fails)
    go_on.set()

    assert (run_alone_count, good.result()) == (1, 1)
    with pytest.raises(RuntimeError):
        bad.result()


def test_submit_calls_back_before_result(writer: GroupCommitWriter, engine: Engine) -> None:
    told: list[list[int]] = []

    def look() -> None:
        with engine.connect() as connection:
            told.append(rows(connection))

    writer.submit(lambda connection: insert(connection, 1), look).result()

    assert told == [[1]]
