"""Run work on a thread that leaves the processors to the generating model."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# Ordinary threads get about nine times its share of a contended processor.
_NICE = 10


async def at_low_priority(work: Callable[[], T]) -> T:
    """Return the result of `work`, on a new thread that does not keep the process from ending. Threads that it
    starts have its priority."""
    done: Future[T] = Future()
    threading.Thread(target=_run, args=(work, done), name="staging", daemon=True).start()
    return await asyncio.wrap_future(done)


def _run(work: Callable[[], T], done: "Future[T]") -> None:
    if not done.set_running_or_notify_cancel():
        return
    if sys.platform == "linux":  # elsewhere a priority is a process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    try:
        result = work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)
