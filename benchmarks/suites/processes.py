"""List a suite's processes by name, with their memory, descriptors and threads. Linux only."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from pentimento.stores.objects.filesystem import FilesystemObjectStore
from pentimento.supervisor.state import StateDirectory, marked_processes

_INSTANCE = "--instance-id"
# written to /proc/PID/clear_refs, it restarts the peak of the resident set
_RESET_PEAK = "5"


@dataclass(frozen=True)
class Holdings:
    """Store one process's holdings at one moment."""

    rss_bytes: int
    descriptors: int
    threads: int


def members(state: Path) -> dict[str, psutil.Process]:
    """Return every process that a supervisor of this state directory started, by instance id; a service's child is its
    parent's name with "/child"."""
    named: dict[str, psutil.Process] = {}
    children: list[psutil.Process] = []
    for process in marked_processes(state):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if _INSTANCE in command:
                named[command[command.index(_INSTANCE) + 1]] = process
            elif command and process.status() != psutil.STATUS_ZOMBIE:
                children.append(process)
    names = {process.pid: name for name, process in named.items()}
    for child in children:
        with contextlib.suppress(psutil.Error):
            named[unused(f"{names.get(child.ppid(), 'nobody')}/child", named)] = child
    return named


def unused(name: str, taken: dict[str, psutil.Process]) -> str:
    return name if name not in taken else unused(name + "+", taken)


def holdings(process: psutil.Process) -> Holdings | None:
    """Return the holdings, or None once the process has ended."""
    try:
        with process.oneshot():
            return Holdings(process.memory_info().rss, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


def processor_s(state: Path) -> dict[str, float]:
    """Return processor seconds of each service's processes since their start: replicas and their children together."""
    spent: dict[str, float] = {}
    for name, process in members(state).items():
        with contextlib.suppress(psutil.Error):
            times, service = process.cpu_times(), name.partition("/")[0].partition(".")[0]
            spent[service] = spent.get(service, 0.0) + times.user + times.system
    return spent


def reset_peak(process: psutil.Process) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/clear_refs").write_text(_RESET_PEAK)


def peak_rss_bytes(process: psutil.Process) -> int | None:
    """Return the kernel's largest resident set since `reset_peak`, or None once the process has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None


_RESULTS = "select image_key from journal_requests where image_key is not null"
_CACHED = "select key from cache_objects"
# names the store's owner (ADR 0003)
_MARK = "owner/journal"
_OPEN_GRANTS = "select count(*) from cache_grants where entry_id is null"


def orphan_objects(state: StateDirectory) -> list[str]:
    """Return keys, except the mark, that are neither a result in the journal nor cached in the gateway's ledger, once
    no request is open."""
    # The keys first: a row may be younger than this read, an object must not be.
    keys = list(FilesystemObjectStore(state.path / "objects").keys())
    named = column(state.path / "frontdoor.sqlite", _RESULTS) | column(state.path / "gateway.sqlite", _CACHED)
    return [key for key in keys if key not in named and key != _MARK]


def open_grants(state: StateDirectory) -> int:
    """Count the cache's reservations that are neither committed, released nor expired."""
    return int(next(iter(column(state.path / "gateway.sqlite", _OPEN_GRANTS))))


def column(database: Path, query: str) -> set[str]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30.0)) as connection:
        return {row[0] for row in connection.execute(query)}


def half_written(state: StateDirectory) -> list[str]:
    """Return files that were begun and not finished by a rename."""
    staged = (state.path / "objects" / "staging").iterdir()
    return [str(path.relative_to(state.path)) for path in (*staged, *state.path.rglob("*.new"))]


def left_after_the_end(state: StateDirectory) -> Iterator[str]:
    """Yield sockets and the files that announce a running suite; for a suite that has stopped."""
    yield from map(str, state.sockets.iterdir() if state.sockets.exists() else ())
    yield from map(str, state.path.rglob("*.sock"))
    yield from (str(file) for file in state.endpoint_files if file.exists())
