"""Lines on their way out: whoever puts one neither waits for its reader nor hears of its failure."""

import threading
from collections import Counter, deque
from collections.abc import Callable

MAX_PENDING_CHARS = 2**20


class Outlet:
    """Takes lines on any thread, and writes them on one of its own with `write(source, line)`.

    Where a write blocks, the oldest lines that wait are dropped; where it raises OSError, `failed` hears of it and the
    line is dropped too. The next line of the same source that can be written has the number of those missing before it.
    """

    def __init__(
        self, name: str, write: Callable[[str, str], None], failed: Callable[[str, OSError], None] | None = None
    ) -> None:
        self._write = write
        self._failed = failed or (lambda source, error: None)
        self._lines: deque[tuple[str, str]] = deque()
        self._pending_chars = 0
        self._lost: Counter[str] = Counter()
        self._closed = False
        self._changed = threading.Condition()
        # A daemon: a write that never returns must not keep the process.
        self._thread = threading.Thread(target=self._run, name=f"output-{name}", daemon=True)
        self._thread.start()

    def put(self, source: str, line: str) -> None:
        """Never waits and never raises."""
        with self._changed:
            self._lines.append((source, line))
            self._pending_chars += len(line)
            while self._pending_chars > MAX_PENDING_CHARS:
                self._lost[self._pop()[0]] += 1
            self._changed.notify()

    def close(self, wait_s: float = 1.0) -> bool:
        """Writes what still waits, for so long at most; whether that is done."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            source, line, missing = taken
            try:
                if missing:
                    self._write(source, f"… {missing} lines are missing here")
                    missing = 0
                self._write(source, line)
            except OSError as error:
                with self._changed:
                    self._lost[source] += missing + 1
                self._failed(source, error)

    def _take(self) -> tuple[str, str, int] | None:
        """The oldest line, and how many of its source are missing before it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            if not self._lines:
                return None
            source, line = self._pop()
            return source, line, self._lost.pop(source, 0)

    def _pop(self) -> tuple[str, str]:
        source, line = self._lines.popleft()
        self._pending_chars -= len(line)
        return source, line
