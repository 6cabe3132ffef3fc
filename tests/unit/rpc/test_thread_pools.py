"""A pool starts all its threads at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pentimento.rpc import process
from pentimento.rpc.process import start_default_threads, started_pool


def named(prefix: str) -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)}


def test_no_work_starts_another_thread() -> None:
    pool = started_pool(5, "ready-made")
    at_the_start = named("ready-made")

    together = threading.Barrier(5)
    waiting = [pool.submit(together.wait) for _ in range(5)]

    assert sorted(task.result() for task in waiting) == list(range(5))
    assert named("ready-made") == at_the_start and len(at_the_start) == 5
    pool.shutdown()
    assert named("ready-made") == set()


async def test_the_event_loop_has_its_threads_from_the_start() -> None:
    start_default_threads()
    at_the_start = named("asyncio_")

    name = await asyncio.to_thread(lambda: threading.current_thread().name)

    # Threads of loops of earlier tests may end meanwhile.
    assert name in at_the_start and named("asyncio_") <= at_the_start


async def test_default_threads_are_cores_and_four_at_most_32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def make(count: int, name: str) -> ThreadPoolExecutor:
        asked.append((count, name))
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(process, "started_pool", make)
    for core_count, thread_count in ((None, 5), (1, 5), (2, 6), (28, 32), (64, 32)):
        monkeypatch.setattr(process.os, "cpu_count", lambda count=core_count: count)
        start_default_threads()
        assert asked.pop() == (thread_count, "asyncio")
