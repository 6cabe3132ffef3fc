"""Give freed memory back once enough is kept and the process rests."""

import asyncio
import errno
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from pentimento.rpc import memory
from pentimento.rpc.memory import MEBIBYTE, FreedWatch, give_back_freed_memory

COURSES = [
    ([40, 40, 40], [False, False, False]),
    ([47, 47, 47], [False, False, False]),
    ([48, 48, 48], [False, True, False]),
    ([48, 48, 40, 48, 48], [False, True, False, False, True]),
    ([60, 80, 100, 100, 100], [False, False, False, True, False]),
    ([60, 40, 60, 40], [False, False, False, False]),
    ([36, 44, 44], [False, False, True]),
    ([60, 61, 62], [False, True, False]),
    ([60, 62, 64], [False, False, False]),
]


def test_enough_freed_memory_is_returned_when_process_rests() -> None:
    for mebibytes, gives_back in COURSES:
        watch = FreedWatch(40 * MEBIBYTE)

        assert [watch.pays(spare * MEBIBYTE) for spare in mebibytes] == gives_back, mebibytes


# Run in a separate process, which prints bytes: garbage and threads of other tests would change the memory of this
# one.
HEAP = """
import ctypes
from pathlib import Path

from pentimento.rpc.memory import HeapFigures, resident_bytes, spare_bytes

library = ctypes.CDLL(None)
library.mallinfo2.restype = HeapFigures
library.malloc.restype = ctypes.c_void_p
library.malloc_trim(0)

def filled(size):
    block = ctypes.c_void_p(library.malloc(size))
    ctypes.memset(block, 1, size)
    return block

"""


def printed_by(program: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", HEAP + program], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_resident_bytes_equal_kernel() -> None:
    status = 'Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]'
    found, kibibytes = printed_by(f"print(resident_bytes(), {status})")

    assert found == pytest.approx(kibibytes * 1024, rel=0.05)


def test_blocks_are_spare_once_they_are_freed_and_kept() -> None:
    before, in_use, freed, given_back = printed_by("""
before = spare_bytes(library)
blocks = [filled(64 << 10) for _ in range(1024)]
in_use = spare_bytes(library)
last = filled(64 << 10)
for block in blocks:
    library.free(block)
freed = spare_bytes(library)
library.malloc_trim(0)
print(before, in_use, freed, spare_bytes(library))
""")

    assert in_use == pytest.approx(before, abs=4 * MEBIBYTE)
    assert freed == pytest.approx(before + 64 * MEBIBYTE, abs=4 * MEBIBYTE)
    assert given_back == pytest.approx(before, abs=4 * MEBIBYTE)


def test_mapped_blocks_count_as_used_until_freed() -> None:
    before, in_use = printed_by("""
before = spare_bytes(library)
block = filled(256 << 20)
print(before, spare_bytes(library))
""")

    assert in_use == pytest.approx(before, abs=4 * MEBIBYTE)


async def test_freed_memory_is_checked_every_second_and_returned_by_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look without a free descriptor is not the last."""
    spare = iter([40, 40, None, 60, 60])
    slept: list[float] = []
    given: list[tuple[int, str, bool]] = []

    def trim(padding: int) -> None:
        thread = threading.current_thread()
        given.append((padding, thread.name, thread.daemon))

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5:
            raise asyncio.CancelledError

    def spare_bytes(library: object) -> int:
        if (mebibytes := next(spare)) is None:
            raise OSError(errno.EMFILE, "too many open files")
        return mebibytes * MEBIBYTE

    library = SimpleNamespace(malloc_trim=trim, mallinfo2=SimpleNamespace())
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory, "spare_bytes", spare_bytes)
    monkeypatch.setattr(memory.asyncio, "sleep", sleep)

    with pytest.raises(asyncio.CancelledError):
        await give_back_freed_memory()
    for thread in threading.enumerate():
        if thread.name == "malloc-trim":
            thread.join()

    assert (slept, given) == ([1.0] * 5, [(0, "malloc-trim", True)])


@pytest.mark.parametrize(
    ("library", "statm"),
    [
        (SimpleNamespace(malloc_trim=None), "/proc/self/statm"),
        (SimpleNamespace(mallinfo2=None), "/proc/self/statm"),
        (SimpleNamespace(malloc_trim=None, mallinfo2=None), "/nowhere"),
    ],
    ids=["no figures", "no trim", "no kernel's figures"],
)
async def test_nothing_is_done_where_the_system_cannot(
    library: object, statm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory, "STATM", Path(statm))

    async with asyncio.timeout(120):
        await give_back_freed_memory()


# Prints whether a block of another thread is on the program's heap. Free memory at the end of any other heap is not
# given back.
THREAD = """
import ctypes, threading
from pathlib import Path
from pentimento.rpc.memory import share_one_heap

assert share_one_heap()
library, taken = ctypes.CDLL(None), []
library.malloc.restype = ctypes.c_void_p
thread = threading.Thread(target=lambda: taken.append(library.malloc(65536)))
thread.start()
thread.join()
[heap] = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]")]
first, last = (int(address, 16) for address in heap.split()[0].split("-"))
print(first <= taken[0] < last)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux counts")
def test_threads_share_the_program_s_heap() -> None:
    done = subprocess.run([sys.executable, "-c", THREAD], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"
