"""Run full garbage collections in quiet times, or after the longest wait."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from pentimento.rpc import memory
from pentimento.rpc.memory import DUE_AFTER, OVERDUE_AFTER, collect_in_quiet_moments

MIDDLE = 1


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOK_S", 0.0)
    monkeypatch.setattr(memory, "QUIET_S", 0.0)


@pytest.fixture
def full() -> Iterator[list[int]]:
    """Return a list that grows with each full collection; Python makes none by itself meanwhile."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            seen.append(info["collected"])

    gc.callbacks.append(note)
    gc.disable()
    yield seen
    gc.enable()
    gc.callbacks.remove(note)


@asynccontextmanager
async def collecting(activity: Callable[[], object]) -> AsyncIterator[None]:
    gc.collect()
    task = asyncio.create_task(collect_in_quiet_moments(activity))
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def look_often() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("waited_for", "count"), [(DUE_AFTER - 1, 0), (DUE_AFTER, 1)])
async def test_due_collection_runs_in_a_quiet_moment(full: list[int], waited_for: int, count: int) -> None:
    async with collecting(lambda: "nothing happens"):
        full.clear()
        for _ in range(waited_for):
            gc.collect(MIDDLE)
        await look_often()

        assert len(full) == count


@pytest.mark.parametrize(("waited_for", "is_collected"), [(OVERDUE_AFTER - 1, False), (OVERDUE_AFTER, True)])
async def test_a_busy_server_collects_when_it_is_overdue(
    waited_for: int, is_collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, collected = count(), []
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, waited_for))
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(1))
    async with collecting(lambda: next(changes)):
        collected.clear()
        await look_often()

    assert bool(collected) is is_collected


async def test_the_interpreter_collects_by_itself_again_afterwards() -> None:
    before = gc.get_threshold()

    async with collecting(lambda: 0):
        meanwhile = gc.get_threshold()

    assert meanwhile == (*before[:2], 1 << 30)
    assert gc.get_threshold() == before
