"""List a suite's processes by name, with their memory, descriptors and threads. Linux only."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from pentimento.supervisor.leftovers import marked_processes

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
