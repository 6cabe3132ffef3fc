"""Make thread pools that start all their threads first.

A pool that starts a thread whenever all others are busy has more threads, each with a separate heap, after every new
peak of load: memory grows with each new peak, and looks like a leak.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

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
