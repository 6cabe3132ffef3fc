"""Spans: what a process computed, and when, a line each in a file, for whoever looks at what overlapped with what.

Times are on the machine's monotonic clock, so that spans of several processes of one host stand on one line of time.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic


@dataclass(frozen=True)
class Span:
    """What ran in which process, and from when to when in seconds; `row_count` rows of a forward pass."""

    what: str
    process_id: int
    began_s: float
    ended_s: float
    row_count: int = 0


class SpanLog:
    """Appends spans to a file, each at once. On any thread; without a path it does nothing."""

    def __init__(self, path: str = "") -> None:
        """Create the file, or go on with it. Raises OSError where it cannot be written."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None

    @contextmanager
    def span(self, what: str, row_count: int = 0) -> Iterator[None]:
        """Note how long the block lasts, however it ends."""
        began_s = monotonic()
        try:
            yield
        finally:
            if self._file is not None:
                self._write(Span(what, os.getpid(), began_s, monotonic(), row_count))

    def _write(self, span: Span) -> None:
        """One write a line: those of several threads and processes do not mix. Where there is no room the line is lost:
        what it is of has been done."""
        assert self._file is not None
        with suppress(OSError):
            os.write(self._file, _line(span))


def _line(span: Span) -> bytes:
    """Put together by hand: it is written between two passes, and json takes ten times as long."""
    what, times = json.dumps(span.what), f'"began_s": {span.began_s!r}, "ended_s": {span.ended_s!r}'
    line = f'{{"what": {what}, "process_id": {span.process_id}, {times}, "row_count": {span.row_count}}}\n'
    return line.encode()


def read_spans(path: Path) -> list[Span]:
    """Return a file's spans in the order in which they ended. Raises OSError, and ValueError for a file of anything
    else."""
    return [Span(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
