"""Write with group commit in one thread: work queued while a commit runs shares the next commit. Read in a second
thread, so that slow reads do not delay the writer's commits.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from time import monotonic
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from pentimento.stores.errors import StoreFull, StoreUnavailable, UnansweredCommit
from pentimento.stores.ledger.errors import LedgerContention, typed_errors

P = ParamSpec("P")
T = TypeVar("T")

_MAX_GROUP_COUNT = 256
_CONTENTION_RETRY_COUNT = 3


@dataclass(frozen=True)
class _Job:
    work: Callable[[Connection], Any]
    future: "Future[Any]"
    on_commit: Callable[[], None]


class JobPart(Protocol):
    """Run one part of a long job. Returns its count, and the next part; None after the last."""

    def __call__(self, connection: Connection, /) -> "tuple[int, JobPart | None]": ...


def _nothing() -> None:
    return


def submitted(work: Callable[Concatenate[Any, Connection, P], T]) -> "Callable[Concatenate[Any, P], Future[T]]":
    """Let the `_submit` of the method's object run `work` with a connection, and return its future."""

    @wraps(work)
    def submit(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = self._submit(lambda connection: work(self, connection, *args, **kwargs))
        return future

    return submit


class GroupCommitWriter:
    """Commit the work of many callers together, in one thread. Owns the only connection that writes. Jobs run in the
    order of `submit`; a failed job undoes only its own changes.

    A job may run more than once before its commit, and must only use its connection.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._stuck_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name}-writer", daemon=True)
        self._thread.start()

    @property
    def stuck_s(self) -> float:
        """Return for how many seconds no queued group has been committed; 0 if groups are committed."""
        since = self._stuck_since
        return 0.0 if since is None else monotonic() - since

    def submit(self, work: Callable[[Connection], T], on_commit: Callable[[], None] = _nothing) -> "Future[T]":
        """Run `work` inside a transaction; the future resolves after its commit, and after `on_commit`, which the
        writer's thread calls.

        It fails with the error of `work`, and then only its own changes are undone; or with StoreFull or
        StoreUnavailable if the group was not committed; or with UnansweredCommit if that is unknown.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise StoreUnavailable("ledger", "it is closed")
            self._jobs.put(_Job(work, future, on_commit))
        return future

    def submit_in_parts(self, part: JobPart, on_commit: Callable[[], None] = _nothing) -> "Future[int]":
        """Run a long job part by part, each in a separate transaction: other jobs run between the parts.

        The future resolves to the sum of the parts' counts. It fails as that of `submit` does; changes of earlier parts
        stay.
        """
        done: Future[int] = Future()
        done.set_running_or_notify_cancel()
        self._go_on(part, on_commit, 0, done)
        return done

    def close(self) -> None:
        """Finish the queued work, then stop the thread and drop the connections."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()
        self._engine.dispose()

    def _go_on(self, part: JobPart, on_commit: Callable[[], None], counted: int, done: "Future[int]") -> None:
        def follow(ended: "Future[tuple[int, JobPart | None]]") -> None:
            try:
                more, following = ended.result()
                if following is None:
                    done.set_result(counted + more)
                else:
                    self._go_on(following, on_commit, counted + more, done)
            except Exception as error:
                done.set_exception(error)

        self.submit(part, on_commit).add_done_callback(follow)

    def _run(self) -> None:
        open_ = True
        while open_:
            group = [self._jobs.get()]
            while len(group) < _MAX_GROUP_COUNT and not self._jobs.empty():
                group.append(self._jobs.get())
            open_ = None not in group
            self._commit([job for job in group if job and job.future.set_running_or_notify_cancel()])

    def _commit(self, group: list[_Job]) -> None:
        if not group:
            return
        if self._stuck_since is None:
            self._stuck_since = monotonic()
        try:
            outcomes = self._run_in_transaction(group)
        except Exception as error:  # the whole group is undone; every caller receives the error
            if not isinstance(error, StoreUnavailable):
                self._stuck_since = None
            for job in group:
                job.future.set_exception(error)
            return
        self._stuck_since = None
        for job, (value, failure) in zip(group, outcomes, strict=True):
            if failure is None:
                job.on_commit()
                job.future.set_result(value)
            else:
                job.future.set_exception(failure)

    def _run_in_transaction(self, group: list[_Job]) -> list[tuple[Any, Exception | None]]:
        for _ in range(_CONTENTION_RETRY_COUNT):
            try:
                return self._run_once(group)
            except LedgerContention:
                # The group is undone, and jobs touch only the database: run them again.
                continue
        return self._run_once(group)

    def _run_once(self, group: list[_Job]) -> list[tuple[Any, Exception | None]]:
        try:
            return self._committed(lambda connection: [(job.work(connection), None) for job in group])
        except (StoreFull, StoreUnavailable):
            raise
        except Exception:
            if len(group) == 1:
                raise
        # Savepoints cost as much as the work, and are needed only now: one job failed and undid the others.
        return self._committed(lambda connection: [_run_on_savepoint(connection, job.work) for job in group])

    def _committed(self, work: Callable[[Connection], T]) -> T:
        """Return the result of the work, once it is committed."""
        has_run = False
        try:
            with typed_errors(), self._engine.begin() as connection:
                outcome = work(connection)
                has_run = True
            return outcome
        except LedgerContention:
            raise
        except StoreUnavailable as error:
            # SQLite undoes a failed commit; a server may have committed, with its answer lost.
            if self._engine.dialect.name == "sqlite":
                raise
            # A server that became a standby may keep its connections, which cannot write.
            self._engine.dispose()
            if has_run:
                raise UnansweredCommit("ledger", "it went away in a commit") from error
            raise


def _run_on_savepoint(connection: Connection, work: Callable[[Connection], Any]) -> tuple[Any, Exception | None]:
    """Return a job's result, or its error. A database that is full or away ends the whole group instead."""
    try:
        with typed_errors(), connection.begin_nested():
            return work(connection), None
    except (StoreFull, StoreUnavailable):
        raise
    except Exception as error:  # only the job's own caller receives its error
        return None, error


R = TypeVar("R")


def followed_by(first: "Future[T]", following: "Callable[[T], Future[R]]") -> "Future[R]":
    """Return the future of `following`, called with the first one's result; it fails if either fails."""
    done: Future[R] = Future()
    done.set_running_or_notify_cancel()

    def end(second: "Future[R]") -> None:
        error = second.exception()
        if error is None:
            done.set_result(second.result())
        else:
            done.set_exception(error)

    def follow(found: "Future[T]") -> None:
        try:
            following(found.result()).add_done_callback(end)
        except Exception as error:
            done.set_exception(error)

    first.add_done_callback(follow)
    return done


class LedgerReader:
    """Run reads in a thread with a separate connection, which sees all earlier commits. The thread starts with the
    first read."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-reader")

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Run `work`, which changes nothing, inside a transaction. The future fails with the error of `work`, or with
        StoreUnavailable. Raises StoreUnavailable after `close`."""
        try:
            return self._threads.submit(self._read, work)
        except RuntimeError:
            raise StoreUnavailable("ledger", "it is closed") from None

    def close(self) -> None:
        """Finish the queued reads, then stop the thread."""
        self._threads.shutdown()

    def _read(self, work: Callable[[Connection], T]) -> T:
        with typed_errors(), self._engine.connect().execution_options(reads_only=True) as connection:
            return work(connection)
