"""What a supervisor that was killed left behind: found by a mark in the environment of every process it started."""

import contextlib
import shutil
from pathlib import Path

import psutil

MARK = "PENTIMENTO_SUITE"
# The pid of the supervisor that started the process.
SUPERVISOR = "PENTIMENTO_SUPERVISOR"


def marked_processes(state: Path) -> list[psutil.Process]:
    """Processes of this user, services' own children included, that a supervisor of this state directory started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(state):
                found.append(process)
    return found


def live_supervisor(state: Path) -> int | None:
    """Return the pid of a supervisor that runs the suite of this state directory; None where none does.

    It is found by its own children: Linux and macOS give a child of a supervisor that died another parent. So the
    answer holds where the state directory, with its lock, was removed meanwhile.
    """
    for process in marked_processes(state):
        with contextlib.suppress(psutil.Error):
            if (parent := process.ppid()) and process.environ().get(SUPERVISOR) == str(parent):
                return parent
    return None


def clean_leftovers(state: Path, sockets: Path, wait_s: float = 5.0) -> int:
    """Ends them and removes their sockets; call it with the lock held, after `live_supervisor` found none. Returns how
    many processes there were.

    They are killed, not drained: a supervisor that died took their terminal with it, and what was accepted is in the
    journal.
    """
    processes = marked_processes(state)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=wait_s)
    if sockets.is_dir() and not sockets.is_symlink():
        shutil.rmtree(sockets, ignore_errors=True)
    return len(processes)
