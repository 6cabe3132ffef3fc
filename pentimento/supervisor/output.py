"""Show all logs in one view, each line after the coloured name of its process, and write one file per process.

Output may fail: the reader has closed it or stopped, or the disk is full. That ends the output, never the suite.
"""

import io
import itertools
import os
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click

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


COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")
KEPT_LINES = 20
MAX_LOG_BYTES = 8 * 1024 * 1024
# The supervisor's name on the terminal, and its log file.
OWN_LABEL, OWN_LOG = "pentimento", "supervisor"


class LogView:
    """Show and store lines; thread-safe, never waits, never raises. With `show` False lines go to the files only.
    Notes of the supervisor are always shown, and stored in `supervisor.log`. `people`: the stream for both [stdout]."""

    def __init__(self, logs: Path, *, show: bool, width: int, people: TextIO | None = None) -> None:
        self._show = show
        self._tails: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self._mutex = threading.Lock()
        self._unwritable: set[tuple[str, int | None]] = set()
        self._stdout = Outlet("stdout", Terminal(sys.stdout if people is None else people, width).write)
        self._stderr = Outlet("stderr", Terminal(sys.stderr, width, own_colour="red").write)
        self._documents = Outlet("documents", write_document)
        self._log_files = LogFiles(logs)
        self._files = Outlet("files", self._log_files.write, self._file_failed)

    def line(self, name: str, text: str) -> None:
        with self._mutex:
            self._tails[name].append(text)
        self._files.put(name, text)
        if self._show:
            self._stdout.put(name, text)

    def note(self, text: str, *, error: bool = False) -> None:
        self._files.put(OWN_LOG, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}")
        (self._stderr if error else self._stdout).put(OWN_LABEL, text)

    def document(self, text: str) -> None:
        """Put one line for programs on stdout, without a name before it."""
        self._documents.put("", text)

    def tail(self, name: str, count: int = 8) -> list[str]:
        """Return the last lines of a process, to show why it ended."""
        with self._mutex:
            return list(self._tails[name])[-count:]

    def close(self) -> None:
        """Wait briefly for the output to end."""
        if self._files.close():
            self._log_files.close()
        for outlet in (self._stdout, self._stderr, self._documents):
            outlet.close()

    def _file_failed(self, name: str, error: OSError) -> None:
        """Report a failure once for each file and reason."""
        if (name, error.errno) not in self._unwritable:
            self._unwritable.add((name, error.errno))
            reason = error.strerror or "unknown reason"
            self._stderr.put(
                OWN_LABEL, f"{name}.log cannot be written ({reason}): its lines are lost, all else goes on"
            )


class Terminal:
    """Write to a stream that people read, bypassing its buffer: a blocked write would keep that locked at exit."""

    def __init__(self, stream: TextIO | None, width: int, own_colour: str | None = None) -> None:
        self._descriptor = descriptor(stream)
        self._coloured = self._descriptor is not None and os.isatty(self._descriptor)
        self._width = width
        self._colours = itertools.cycle(COLOURS)
        self._labels = {OWN_LABEL: self._label(OWN_LABEL, own_colour, bold=True)}

    def write(self, name: str, text: str) -> None:
        if self._descriptor is None:
            return
        if name not in self._labels:
            self._labels[name] = self._label(name, next(self._colours))
        write_line(self._descriptor, f"{self._labels[name]} │ {text}")

    def _label(self, name: str, colour: str | None, *, bold: bool = False) -> str:
        padded = name.ljust(self._width)
        return click.style(padded, fg=colour, bold=bold) if self._coloured else padded


def write_document(_: str, text: str) -> None:
    """Write the line on stdout, bypassing its buffer. Raises OSError."""
    if (stdout := descriptor(sys.stdout)) is not None:
        write_line(stdout, text)


def write_line(to: int, text: str) -> None:
    """Write the whole line. Raises OSError."""
    rest = f"{text}\n".encode(errors="replace")
    while rest:
        rest = rest[os.write(to, rest) :]


def descriptor(stream: TextIO | None) -> int | None:
    """Return the stream's file descriptor; None if the process was started without it or it is not a file."""
    try:
        return stream.fileno() if stream is not None else None
    except (OSError, ValueError):
        return None


class LogFiles:
    """Write NAME.log of each process in a folder. A file that failed is opened again for the next line, since the disk
    may have room again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, io.FileIO] = {}

    def write(self, name: str, text: str) -> None:
        """Append a line to the file of `name`. Raises OSError."""
        try:
            write_line(self._file(name).fileno(), text)
        except OSError:
            self._forget(name)
            raise

    def close(self) -> None:
        for name in list(self._files):
            self._forget(name)

    def _file(self, name: str) -> io.FileIO:
        """Return the open file of `name`. A file above `MAX_LOG_BYTES` is renamed to `.log.1` first."""
        path = self._folder / f"{name}.log"
        file = self._files.get(name) or self._files.setdefault(name, io.FileIO(path, "a"))
        if file.tell() < MAX_LOG_BYTES:
            return file
        self._forget(name)
        path.replace(path.with_suffix(".log.1"))
        return self._files.setdefault(name, io.FileIO(path, "a"))

    def _forget(self, name: str) -> None:
        if (file := self._files.pop(name, None)) is not None:
            file.close()
