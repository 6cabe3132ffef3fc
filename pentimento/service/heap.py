"""The C heap of a process that computes with tensors on the CPU, or sends and receives them.

By default glibc asks the kernel for each block above 32 MiB anew, and gives the end of its heap back as soon as 64 MiB
of it are free. The kernel clears the pages each time: 450,000 of them in a pass of Stable Diffusion 1.5's UNet at 256
pixels, which is a seventh of its time (docs/adr/0079)."""

import ctypes

# Larger blocks come from the kernel and go back to it: no network needs one in each of its passes.
LARGEST_KEPT_BLOCK_BYTES = 256 << 20
KEPT_BYTES = 512 << 20
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Keep freed blocks for later ones, and let all threads share one heap; call it before there are other threads.
    Return whether the C library can: glibc can.

    What is kept goes back once the process rests, as with every server (`pentimento.rpc`), and by `give_back`.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    # A heap of another thread's own has no room for a block of more than 64 MiB, and goes as a whole.
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return all([library.mallopt(*setting) == 1 for setting in settings])


def give_back() -> None:
    """Give all freed pages back to the kernel, where the C library can."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
