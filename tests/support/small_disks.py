"""Disks that really fill up."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MNT_DETACH = 2


@contextmanager
def mounted_tmpfs(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a tmpfs of that size, mounted below the folder. Skips the test where none may be mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    mount = folder / "disk"
    mount.mkdir()
    if libc.mount(b"tmpfs", bytes(mount), b"tmpfs", 0, f"size={size_bytes}".encode()) != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield mount
    finally:
        # Detach: a process may still have a file open there, and no later run could delete a mounted folder.
        libc.umount2(bytes(mount), MNT_DETACH)
