"""Return freed memory of the C heap to the system when the process is idle, and keep a bounded part until then.

glibc returns only free memory at the end of a heap: one small live block after the messages of an attack holds all
their memory (measured: 44 to 118 MiB of a process that uses 44). `malloc_trim` returns all free pages, except at the
end of a heap that is not the first: eight threads that had each handled an image of 8 MiB held 66 MiB. So all threads
of a service share one heap. Trimming takes up to 60 ms, and other threads wait for the heap, so it runs only when it
pays and the process is idle.

The kernel clears each page that it hands out again. Two kinds of process therefore keep freed memory until they rest:

- A service that carries images allocates about ten times an image's bytes per request. With blocks of up to 32 MiB and
  64 MiB at the heap's end kept, a frontdoor takes 0.72 of the processor time for images of 2.2 MB, 0.85 for 700 kB and
  0.99 for 2 kB.
- A process that computes or carries tensors needs its memory again in the next step. With blocks of up to 256 MiB and
  512 MiB at the end kept, a pass of Stable Diffusion 1.5's UNet at 256 pixels on the CPU takes 0.84 of the time, with
  450,000 pages fewer, and a step's residuals in chunks 0.49.

Another allocator would have to be preloaded, and environment variables would miss a worker that is started by hand.
Without glibc nothing changes.

Full garbage collections run in quiet moments. By itself the interpreter scans all live objects whenever their number
has grown by a quarter: with two thousand waiting calls, this delays every caller for 110 to 180 ms, several times a
minute (CPython 3.11). Only a full collection frees little: half a megabyte of ten thousand rejected calls. The younger
generations are collected as usual.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from resource import getpagesize
from threading import Thread

LOOK_S = 1.0
# No call begins or ends in this time.
QUIET_S = 0.02
# Collections of the middle generation since the last full one: the interpreter's own bound, and the bound after which
# the full collection no longer waits for a quiet moment.
DUE_AFTER = 10
OVERDUE_AFTER = 500
NEVER = 1 << 30


async def collect_in_quiet_moments(activity: Callable[[], object]) -> None:
    """Run due full collections while no call is answered, in place of the interpreter's own times, until cancelled.

    The return value of `activity` changes whenever a call begins or ends.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            waited_for = gc.get_count()[2]
            if waited_for >= OVERDUE_AFTER or (waited_for >= DUE_AFTER and await is_quiet(activity)):
                gc.collect()
    finally:
        gc.set_threshold(young, middle, old)


async def is_quiet(activity: Callable[[], object]) -> bool:
    """Return whether no call begins or ends for QUIET_S from now on."""
    before = activity()
    await asyncio.sleep(QUIET_S)
    return activity() == before


MEBIBYTE = 1 << 20
STATM = Path("/proc/self/statm")
FREED_BYTES = 8 * MEBIBYTE
QUIET_BYTES = MEBIBYTE
# The size of one image's message, and of a few.
PICTURE_BLOCK_BYTES = 32 * MEBIBYTE
PICTURES_BYTES = 64 * MEBIBYTE
# Larger blocks come from the kernel and return to it: no network needs one in each pass.
LARGEST_KEPT_BLOCK_BYTES = 256 * MEBIBYTE
KEPT_BYTES = 512 * MEBIBYTE
# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


class HeapFigures(ctypes.Structure):
    """Hold glibc's report on its heaps, in bytes and blocks: `struct mallinfo2` of malloc.h."""

    _fields_ = [
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]

    uordblks: int
    hblkhd: int


class FreedWatch:
    """Decide when to return freed memory, from the bytes held beyond those in use, read at regular times.

    These include the program itself, which stays: the excess over the minimum since the last return matters. Resident
    bytes alone would not show it: glibc frees without changing them.
    """

    def __init__(self, spare_bytes: int) -> None:
        self._least_bytes = self._last_bytes = spare_bytes

    def pays(self, spare_bytes: int) -> bool:
        """Return whether FREED_BYTES were freed and kept since the last time this was true, and the process is idle."""
        quiet = abs(spare_bytes - self._last_bytes) <= QUIET_BYTES
        self._last_bytes = spare_bytes
        self._least_bytes = min(self._least_bytes, spare_bytes)
        if not quiet or spare_bytes - self._least_bytes < FREED_BYTES:
            return False
        # Memory that remains after the return is not freed memory.
        self._least_bytes = spare_bytes
        return True


async def give_back_freed_memory() -> None:
    """Return freed memory to the system, until cancelled; end immediately if the C library cannot (glibc can, from 2.33
    on)."""
    library = ctypes.CDLL(None)
    if not (hasattr(library, "malloc_trim") and hasattr(library, "mallinfo2") and STATM.exists()):
        return
    library.mallinfo2.restype = HeapFigures
    watch = FreedWatch(spare_bytes(library))
    while True:
        await asyncio.sleep(LOOK_S)
        # Under attack a process may be out of descriptors or threads: it returns the memory after the attack.
        with suppress(OSError, RuntimeError):
            if watch.pays(spare_bytes(library)):
                # A separate, short thread: the event loop continues, and no pool keeps a thread for it.
                Thread(target=trim_heap, name="malloc-trim", daemon=True).start()


def share_one_heap() -> bool:
    """Let all threads share one heap, and keep memory for a few images there until the process is idle; call it before
    other threads exist. Return whether the C library can: glibc can."""
    return _set((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, PICTURE_BLOCK_BYTES), (_M_TRIM_THRESHOLD, PICTURES_BYTES))


def keep_freed_memory() -> bool:
    """Keep freed blocks for later ones until the process is idle, in one heap for all threads; call it after
    `share_one_heap`, and before other threads exist. Return whether the C library can: glibc can."""
    # Another thread's separate heap has no room for a block of more than 64 MiB, and is freed as a whole.
    return _set((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))


def _set(*settings: tuple[int, int]) -> bool:
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and all([library.mallopt(*setting) == 1 for setting in settings])


def trim_heap() -> None:
    """Return all freed pages to the system now, if the C library can."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def spare_bytes(library: ctypes.CDLL) -> int:
    """Return the bytes that this process holds in memory beyond those in use in its C heaps (Linux). `library` is the C
    library; its mallinfo2 returns HeapFigures and takes about 0.1 ms."""
    heaps: HeapFigures = library.mallinfo2()
    return resident_bytes() - heaps.uordblks - heaps.hblkhd


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, as the kernel counts it (Linux)."""
    return int(STATM.read_text().split()[1]) * getpagesize()
