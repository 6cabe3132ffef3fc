"""Read in a second thread, so that slow reads do not delay the writer's commits."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.database import typed_errors

T = TypeVar("T")
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
