"""Run a service from its `__main__.py`: report a failed start in one line, and exit with the code of the outcome.

0    stopped on request             1    could not start or broke down
2    settings rejected              130  interrupted before it could drain

Thread pools start all their threads first. A pool that starts a thread whenever all others are busy has more threads,
each with a separate heap, after every new peak of load: memory grows with each new peak, and looks like a leak.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from pentimento.domain.errors import PentimentoError
from pentimento.files.json_values import to_json
from pentimento.files.private_files import keep_files_private
from pentimento.rpc.memory import share_one_heap
from pentimento.settings import SettingsError, load_settings
from pentimento.telemetry.logs import configure_logging, log_unhandled, log_what_nobody_catches

S = TypeVar("S")

# As asyncio's own default pool has.
_MOST_DEFAULT_THREADS = 32
_MORE_THAN_CORES = 4


def started_pool(thread_count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of `thread_count` running threads, named NAME_0 and on."""
    pool = ThreadPoolExecutor(thread_count, name)
    # No task ends before the last has begun, so each has a separate thread.
    together = Barrier(thread_count)
    for begun in [pool.submit(together.wait) for _ in range(thread_count)]:
        begun.result()
    return pool


def start_default_threads() -> None:
    """Give the running event loop a started pool for `asyncio.to_thread`, of the default size."""
    thread_count = min(_MOST_DEFAULT_THREADS, (os.cpu_count() or 1) + _MORE_THAN_CORES)
    asyncio.get_running_loop().set_default_executor(started_pool(thread_count, "asyncio"))


STOPS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handle SIGTERM and SIGINT in a context: the first asks, the second insists, a third kills the process.

    SIGHUP calls `on_hangup`.
    """

    def __init__(self, on_hangup: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self._on_hangup = on_hangup
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        for number in STOPS:
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        for number in (*STOPS, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _on_stop(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
            for number in STOPS:
                # The event loop itself may hang: from here on the kernel acts by itself.
                self._loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        self.asked.set()


async def completes(work: Callable[[], Awaitable[None]], interrupt: asyncio.Event) -> bool:
    """Run `work` until it is done (True; raises its errors) or the event interrupts and cancels it (False)."""
    working = asyncio.ensure_future(work())
    interrupted = asyncio.ensure_future(interrupt.wait())
    try:
        await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        interrupted.cancel()
        working.cancel()
        await asyncio.gather(working, interrupted, return_exceptions=True)


EXIT_BROKEN = 1
EXIT_SETTINGS = 2
EXIT_INTERRUPTED = 130


def run_service(main: Callable[[list[str]], Awaitable[None]], *, private: bool = True) -> None:
    """Run `main(argv)` in a new event loop, argv without the program; does not return on failure. Only this user can
    read the files that it creates, unless `private` is False."""

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(log_unhandled)
        start_default_threads()
        await main(sys.argv[1:])

    if private:
        keep_files_private()
    share_one_heap()
    log_what_nobody_catches()
    try:
        asyncio.run(run())
    except SettingsError as error:
        leave(str(error), EXIT_SETTINGS)
    except PentimentoError as error:
        leave(error.message, EXIT_BROKEN)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        logging.getLogger(__name__).exception("failed")
        sys.exit(EXIT_BROKEN)


def print_found(name: str, settings: type[S], find: Callable[[S], object]) -> None:
    """Run the command `name`: print as JSON what `find` returns for its settings, on another thread."""

    async def main(argv: list[str]) -> None:
        found = await asyncio.to_thread(find, load_settings(settings, name, argv))
        sys.stdout.write(json.dumps(to_json(found)) + "\n")

    configure_logging(name, "")
    run_service(main)


def leave(message: str, code: int) -> NoReturn:
    sys.stderr.write(" ".join(message.split()) + "\n")
    sys.exit(code)
