"""Pools of threads that have all their threads from the start.

A pool that starts a thread whenever all others are busy holds more of them, each with a heap of its own, after every
new peak of load: memory seems to leak for as long as there are new peaks, and nobody can tell it from a leak.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

# As asyncio's own default pool has.
_MOST_DEFAULT_THREADS = 32
_MORE_THAN_CORES = 4


def started_pool(thread_count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of so many threads, named NAME_0 and on, all of which run already."""
    pool = ThreadPoolExecutor(thread_count, name)
    # None of them is done before the last has begun, so each has a thread of its own.
    together = Barrier(thread_count)
    for begun in [pool.submit(together.wait) for _ in range(thread_count)]:
        begun.result()
    return pool


def start_default_threads() -> None:
    """Give the running event loop a started pool for `asyncio.to_thread`, as large as the one that it would make."""
    thread_count = min(_MOST_DEFAULT_THREADS, (os.cpu_count() or 1) + _MORE_THAN_CORES)
    asyncio.get_running_loop().set_default_executor(started_pool(thread_count, "asyncio"))
