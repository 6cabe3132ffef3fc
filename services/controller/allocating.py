"""Run policies in threads with a time limit: the controller serves while one decides, even if it never ends."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pentimento.rpc import run_service

T = TypeVar("T")
U = TypeVar("U")

_THREAD_NAME = "allocator"
# Calls that did not end in time continue in their threads; at this number no more are started.
MAX_STUCK = 4


class AllocatorStuck(Exception):
    """Report a policy that did not decide in time, or was not called since too many earlier calls have not ended."""


class AllocatorThreads:
    """Run each call in a separate thread; the process ends without waiting for them (`run_beside_allocators`)."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._stuck: set[threading.Thread] = set()

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call` within the limit. Raises AllocatorStuck, and what `call` raises."""
        self._stuck = {thread for thread in self._stuck if thread.is_alive()}
        if len(self._stuck) >= MAX_STUCK:
            raise AllocatorStuck(f"{MAX_STUCK} calls have not ended")
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[T] = loop.create_future()
        thread = threading.Thread(target=_run, args=(call, loop, decided), name=_THREAD_NAME, daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self.limit_s):
                return await decided
        except TimeoutError:
            if not decided.cancelled():
                raise  # the call itself raised it
            self._stuck.add(thread)
            raise AllocatorStuck(f"no decision after {self.limit_s:g} s") from None


def run_beside_allocators(main: Callable[[list[str]], Awaitable[None]]) -> None:
    """Run `main(argv)` as `run_service` does, and end the process with its exit code. If an allocator is still
    deciding, the process ends immediately: an interpreter that finalises during a solver's C++ code aborts."""
    code = 0
    try:
        run_service(main)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    if any(thread.name == _THREAD_NAME for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(call: Callable[[], T], loop: asyncio.AbstractEventLoop, decided: "asyncio.Future[T]") -> None:
    try:
        settle = partial(_settle, decided, decided.set_result, call())
    except Exception as error:  # it is raised in `run`
        settle = partial(_settle, decided, decided.set_exception, error)
    # The loop may have ended while the call ran.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


def _settle(decided: "asyncio.Future[T]", settle: Callable[[U], None], outcome: U) -> None:
    if not decided.done():
        settle(outcome)
