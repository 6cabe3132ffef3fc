"""Find and end the processes of a killed supervisor, by a mark in the environment of every process it started."""

import contextlib
import shutil
from pathlib import Path

import psutil

MARK = "PENTIMENTO_SUITE"
# The pid of the supervisor that started the process.
SUPERVISOR = "PENTIMENTO_SUPERVISOR"


def marked_processes(state: Path) -> list[psutil.Process]:
    """Return this user's processes that a supervisor of this state directory started, with the services' children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(state):
                found.append(process)
    return found


def live_supervisor(state: Path) -> int | None:
    """Return the pid of a supervisor that runs the suite of this state directory; None if there is none.

    Its own children identify it: Linux and macOS give the children of a dead supervisor another parent. So the answer
    holds even if the state directory, with its lock, has been removed.
    """
    for process in marked_processes(state):
        with contextlib.suppress(psutil.Error):
            if (parent := process.ppid()) and process.environ().get(SUPERVISOR) == str(parent):
                return parent
    return None


def clean_leftovers(state: Path, sockets: Path, wait_s: float = 5.0) -> int:
    """End the marked processes, remove their sockets, and return the number of processes. Call it with the lock held,
    after `live_supervisor` found none.

    They are killed, not drained: the dead supervisor took their terminal with it, and accepted requests are in the
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
