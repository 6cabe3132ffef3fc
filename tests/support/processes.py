"""Processes of services and of tests, started from the repository's root and ended with their test."""

import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
Process = subprocess.Popen[bytes]


class StartedProcesses:
    """Whoever starts processes here ends them by `end`, also those that were stopped."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def start(self, module: str, *arguments: str, log: Path | None = None) -> Process:
        """Start `python -m module`; its output goes to the end of `log`, else where the tests' own goes."""
        command = [sys.executable, "-m", module, *arguments]
        if log is None:
            process = subprocess.Popen(command, cwd=ROOT)
        else:
            with log.open("ab") as file:
                process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill what still runs, and wait for all."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; a zombie has, and waits for whoever is its parent now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # Between the two.
        return False
