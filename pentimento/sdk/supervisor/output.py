"""One view of all logs, each line with the name of its process before it, in its colour; and a file a process."""

import itertools
import threading
from collections import deque
from pathlib import Path
from typing import IO

import click

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")
KEPT_LINES = 20
MAX_LOG_BYTES = 8 * 1024 * 1024


class LogView:
    """Thread-safe. `show` False keeps the lines in the files only; notes of the supervisor are always shown."""

    def __init__(self, logs: Path, *, show: bool, width: int) -> None:
        self._logs = logs
        self._show = show
        self._width = width
        self._colours = itertools.cycle(COLOURS)
        self._colour: dict[str, str] = {}
        self._files: dict[str, IO[str]] = {}
        self._tails: dict[str, deque[str]] = {}
        self._mutex = threading.Lock()

    def line(self, name: str, text: str) -> None:
        with self._mutex:
            self._file(name).write(text + "\n")
            self._tails[name].append(text)
            if self._show:
                click.echo(f"{click.style(name.ljust(self._width), fg=self._colour[name])} │ {text}")

    def note(self, text: str, *, error: bool = False) -> None:
        with self._mutex:
            label = click.style("pentimento".ljust(self._width), bold=True, fg="red" if error else None)
            click.echo(f"{label} │ {text}", err=error)

    def tail(self, name: str, count: int = 8) -> list[str]:
        """The last lines of a process, for people who must find out why it ended."""
        with self._mutex:
            return list(self._tails.get(name, ()))[-count:]

    def close(self) -> None:
        with self._mutex:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, name: str) -> IO[str]:
        """Opened at the first line; a file that grew large is put aside once."""
        file = self._files.get(name)
        if file is not None and file.tell() < MAX_LOG_BYTES:
            return file
        path = self._logs / f"{name}.log"
        if file is not None:
            file.close()
            path.replace(path.with_suffix(".log.1"))
        self._files[name] = path.open("a", buffering=1)
        self._tails.setdefault(name, deque(maxlen=KEPT_LINES))
        self._colour.setdefault(name, next(self._colours))
        return self._files[name]
