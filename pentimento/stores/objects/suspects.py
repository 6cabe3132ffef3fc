"""Track objects that a read found missing or corrupt: the store may return wrong data for a while."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from pentimento.domain.clock import Backoff
from pentimento.domain.generation import ObjectReference

# Bad readings in a row, `apart_s` from one to the next, that confirm an object as bad.
BAD_READINGS = 3
# The first repeated read comes soon: most outages are short.
_FIRST_PAUSE_S = 5.0
# About 1 MiB. A further mark removes the oldest one; its object is marked again with its next bad reading.
_MOST_MARKS = 4096


@dataclass
class _Mark:
    """Hold the bad reads of an object. `counted_at`: time of the last read that counts. `read_at`, `read_count`: of all
    bad reads."""

    reference: ObjectReference
    holder: str
    counted_at: float
    read_at: float
    counted: int = 1
    read_count: int = 1


class Suspects:
    """Keep a mark of each object that was read badly, until one good read or three bad ones. Thread-safe.

        if suspects.note_bad(reference):   # the third bad reading: nothing good was read for two hours
            store.set_aside(reference)
        suspects.note_good(key)            # the mark goes

    Marks are in memory: a restart begins again with the first reading, which costs nothing but time.
    """

    def __init__(self, apart_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """Start without marks. `apart_s`: seconds between two reads that count."""
        self._apart_s = apart_s
        self._now = now
        self._pauses = Backoff(min(_FIRST_PAUSE_S, apart_s), apart_s)
        self._marks: dict[str, _Mark] = {}
        self._holders: frozenset[str] = frozenset()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, key: object) -> bool:
        return key in self._marks

    @property
    def holders(self) -> frozenset[str]:
        """Return the holders of all marked objects."""
        return self._holders

    def note_bad(self, reference: ObjectReference, holder: str = "") -> bool:
        """Mark the object, which `holder` holds, and return whether it is confirmed as bad."""
        with self._lock:
            now, mark = self._now(), self._marks.get(reference.key)
            if mark is None:
                if len(self._marks) >= _MOST_MARKS:
                    del self._marks[next(iter(self._marks))]
                mark = self._marks[reference.key] = _Mark(reference, holder, now, now)
                self._follow_holders()
                return False
            mark.read_at, mark.read_count = now, mark.read_count + 1
            if now - mark.counted_at >= self._apart_s:
                mark.counted_at, mark.counted = now, mark.counted + 1
            return mark.counted >= BAD_READINGS

    def note_good(self, key: str) -> None:
        """Remove the mark of an object that was read well, or that no entry holds now."""
        with self._lock:
            if self._marks.pop(key, None) is not None:
                self._follow_holders()

    def due(self, limit_count: int) -> list[tuple[ObjectReference, str]]:
        """Return up to `limit_count` marked objects due for another read, with their holders."""
        with self._lock:
            now = self._now()
            due = [one for one in self._marks.values() if now - one.read_at >= self._pauses.delay_s(one.read_count)]
        return [(mark.reference, mark.holder) for mark in due[:limit_count]]

    def _follow_holders(self) -> None:
        self._holders = frozenset(mark.holder for mark in self._marks.values())
