"""Keep components in the host's memory: the kernel's cache of the local disk, which all processes of a host share.

Copies in /dev/shm would take the memory twice; reads past the cache (O_DIRECT) were no faster than through it.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from pentimento.domain.components import ComponentRule, Loadable, victims

# A component's bytes come from the disk at about this rate.
DISK_BYTES_PER_S = 1e9


class HostTier:
    """Bound the memory that components take: those beyond it are removed from the kernel's cache after their use.
    Thread-safe. With 0 bytes the kernel alone decides."""

    def __init__(self, max_bytes: int, rule: ComponentRule) -> None:
        self._max_bytes = max_bytes
        self._rule = rule
        self._warm: dict[str, tuple[Loadable, Path]] = {}
        self._lock = threading.Lock()

    def note_use(self, path: Path, size_bytes: int) -> None:
        """Count a use of a component, after it. If there is no room, others leave memory, or it does."""
        if not self._max_bytes:
            return
        one, now_s = Loadable(path.name, size_bytes, size_bytes / DISK_BYTES_PER_S), time.monotonic()
        with self._lock:
            self._rule.note_use(one, now_s)
            warm = [each for each, _ in self._warm.values()]
            needed_bytes = sum(each.memory_bytes for each in warm) + size_bytes - self._max_bytes
            leaving = () if path.name in self._warm else victims(self._rule, warm, needed_bytes, now_s)
            if leaving is None:
                _forget(path)
                return
            for name in leaving:
                gone, place = self._warm.pop(name)
                self._rule.note_eviction(gone, now_s)
                _forget(place)
            self._warm[path.name] = (one, path)


def _forget(path: Path) -> None:
    """Remove a file from the kernel's cache; harmless for processes that read it."""
    with suppress(OSError), path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
