"""When freed memory is looked for: after a change that matters, once it is over."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from pentimento.rpc import freed_memory
from pentimento.rpc.freed_memory import MEBIBYTE, MovementWatch, give_back_freed_memory, resident_bytes


@pytest.mark.parametrize(
    ("mebibytes", "looks"),
    [
        ([40, 40, 40], [False, False, False]),
        ([47, 47, 47], [False, False, False]),
        ([48, 48, 48], [False, True, False]),
        ([60, 80, 100, 100, 100], [False, False, False, True, False]),
        ([139, 139, 102, 102, 46, 46, 46], [False, True, False, True, False, True, False]),
        ([60, 40, 60, 40], [False, False, False, False]),
        ([60, 61, 62], [False, True, False]),
        ([60, 62, 64], [False, False, False]),
    ],
    ids=["steady", "little", "grown", "growing", "shrinking", "swinging", "nearly still", "still moving"],
)
def test_freed_memory_is_looked_for_when_the_process_moved_and_rests(mebibytes: list[int], looks: list[bool]) -> None:
    watch = MovementWatch(40 * MEBIBYTE)

    assert [watch.pays(held * MEBIBYTE) for held in mebibytes] == looks


def test_what_a_process_holds_is_what_the_kernel_says() -> None:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))

    assert resident_bytes() == pytest.approx(int(line.split()[1]) * 1024, rel=0.05)


async def test_it_is_looked_for_every_second_and_given_back_by_a_thread_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = iter([40 * MEBIBYTE, 40 * MEBIBYTE, 60 * MEBIBYTE, 60 * MEBIBYTE])
    slept: list[float] = []
    given: list[tuple[int, str, bool]] = []

    def trim(padding: int) -> None:
        thread = threading.current_thread()
        given.append((padding, thread.name, thread.daemon))

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=trim))
    monkeypatch.setattr(freed_memory, "resident_bytes", lambda: next(held))
    monkeypatch.setattr(freed_memory.asyncio, "sleep", sleep)

    with pytest.raises(asyncio.CancelledError):
        await give_back_freed_memory()
    for thread in threading.enumerate():
        if thread.name == "malloc-trim":
            thread.join()

    assert (slept, given) == ([1.0] * 4, [(0, "malloc-trim", True)])


@pytest.mark.parametrize(("library", "statm"), [(SimpleNamespace(), "/proc/self/statm"), (None, "/nowhere")])
async def test_nothing_is_done_where_the_system_cannot(
    library: object, statm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(malloc_trim=None) if library is None else library
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: found)
    monkeypatch.setattr(freed_memory, "STATM", Path(statm))

    async with asyncio.timeout(60):
        await give_back_freed_memory()
