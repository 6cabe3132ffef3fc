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
"""

import asyncio
import ctypes
from contextlib import suppress
from pathlib import Path
from resource import getpagesize
from threading import Thread

MEBIBYTE = 1 << 20
STATM = Path("/proc/self/statm")
LOOK_S = 1.0
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
