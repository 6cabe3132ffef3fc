"""Test whether freed blocks stay with the process, by the pages that the kernel supplies again."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pentimento.rpc import memory

# Takes and frees blocks of given MiB again and again on a separate thread; prints the new pages.
BLOCKS = """
import ctypes, resource, sys, threading
from pentimento.rpc import memory
from pentimento.rpc.memory import trim_heap

assert getattr(memory, sys.argv[1])()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def turn():
    blocks = [library.malloc(int(mebibytes) << 20) for mebibytes in sys.argv[2:]]
    for block, mebibytes in zip(blocks, sys.argv[2:]):
        ctypes.memset(block, 1, int(mebibytes) << 20)
    for block in blocks:
        library.free(block)

def turns():
    turn()
    begun = faults()
    for _ in range(5):
        turn()
    print(faults() - begun)
    trim_heap()
    begun = faults()
    turn()
    print(faults() - begun)

thread = threading.Thread(target=turns)
thread.start()
thread.join()
"""


# MiB of the blocks of an engine pass, and of an image in a service.
TENSORS, PICTURE = ("100", "40"), ("3", "3", "3", "3")
KEPT = [("keep_freed_memory", TENSORS), ("share_one_heap", PICTURE)]


def new_pages(how: str, blocks: tuple[str, ...]) -> list[int]:
    """Return the new pages of five turns, and of one after a trim: the size of pages depends on the machine."""
    done = subprocess.run([sys.executable, "-c", BLOCKS, how, *blocks], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts pages of Linux")
@pytest.mark.parametrize(("how", "blocks"), KEPT)
def test_blocks_that_are_kept_cost_no_page_until_they_are_given_back(how: str, blocks: tuple[str, ...]) -> None:
    five_turns, after_giving_back = new_pages(how, blocks)

    assert five_turns < after_giving_back / 10


def test_a_c_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace())

    assert not memory.keep_freed_memory()
    memory.trim_heap()


def test_rejected_setting_returns_false(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        asked.append((parameter, value))
        return int(parameter != -3)

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))

    assert not memory.keep_freed_memory()
    assert asked == [(-8, 1), (-3, 256 * 1024 * 1024), (-1, 512 * 1024 * 1024)]
