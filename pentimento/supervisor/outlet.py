"""Write lines in the background: `put` neither waits for the reader nor raises its errors."""

import threading
from collections import Counter, deque
from collections.abc import Callable

MAX_PENDING_CHARS = 2**20


class Outlet:
    """Take lines on any thread, and write them on a separate thread with `write(source, line)`.

    While a write blocks, the oldest waiting lines are dropped. If it raises OSError, `failed` receives the error and
    the line is dropped. Before the source's next written line comes a note with the number of missing lines.
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
        # A daemon: a write that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"output-{name}", daemon=True)
        self._thread.start()

    def put(self, source: str, line: str) -> None:
        """Queue a line. Never waits and never raises."""
        with self._changed:
            self._lines.append((source, line))
            self._pending_chars += len(line)
            while self._pending_chars > MAX_PENDING_CHARS:
                self._lost[self._pop()[0]] += 1
            self._changed.notify()

    def close(self, wait_s: float = 1.0) -> bool:
        """Write the waiting lines for at most `wait_s` seconds, and return whether all were written."""
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
        """Return the oldest line and the number of its source's lines missing before it; None at the end."""
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
