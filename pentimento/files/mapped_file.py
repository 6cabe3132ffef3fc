"""Map a file into memory, and verify its blocks there on threads: verified bytes are used in place, without a copy.

    mapped = MappedFile(path, sums.of(path))
    mapped.verify(range(3))
    mapped.wait(range(3))        # raises CorruptComponent
    tensor = torch.frombuffer(mapped.data, …)

The pages are the kernel's cache of the file, which all processes of a host share; a process that writes to one gets a
copy of it. So no process may write to the file while it is mapped: the component store never does, and makes its files
read-only. To overwrite a file of a model's directory in place changes, or ends, the processes that serve it; a new file
under the old name does not. A disk that fails under a mapping ends the process.
"""

import fcntl
import os
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from mmap import MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap
from pathlib import Path

from pentimento.files.file_sums import BLOCK_BYTES, CorruptComponent, FileSum

# One thread verifies about 4 GB/s; a disk is slower than four.
VERIFIERS = max(1, min(4, os.cpu_count() or 1))
# The kernel reserves no memory for copies of pages: few are ever written.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


class MappedFile:
    """Hold a file's bytes in `data`. While a reference to it is left, the file is locked as in use (see
    `stores.components.disk`)."""

    def __init__(self, path: Path, expected: FileSum, source: str = "the file") -> None:
        """Map the file. Raises CorruptComponent for one of another size, ValueError for an empty one, OSError."""
        self._path, self._expected, self._source = path, expected, source
        self._verified: dict[int, Future[None]] = {}
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if (size_bytes := os.fstat(descriptor).st_size) != expected.size_bytes:
                raise CorruptComponent(path.name, source, f"{size_bytes} bytes, expected {expected.size_bytes}")
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # The mapping keeps a duplicate of the descriptor, and with it the lock.
            self.data = mmap(descriptor, size_bytes, MAP_PRIVATE | _NO_RESERVE, PROT_READ | PROT_WRITE)
        finally:
            os.close(descriptor)

    def verify(self, indices: Iterable[int]) -> None:
        """Begin to verify blocks, in this order."""
        pool = ThreadPoolExecutor(VERIFIERS, thread_name_prefix="verify")
        self._verified |= {index: pool.submit(self._verify, index) for index in indices if index not in self._verified}
        pool.shutdown(wait=False)

    def wait(self, indices: Iterable[int]) -> None:
        """Return once these blocks were verified. Raises CorruptComponent for one with other bytes, and verifies no
        more."""
        try:
            for index in indices:
                self._verified[index].result()
        except CorruptComponent:
            for one in self._verified.values():
                one.cancel()
            raise

    def _verify(self, index: int) -> None:
        start = index * BLOCK_BYTES
        with memoryview(self.data)[start : start + self._expected.block_size(index)] as block:
            if not self._expected.matches(index, block):
                detail = f"block {index} of {len(self._expected.blocks)}"
                raise CorruptComponent(self._path.name, self._source, detail)
