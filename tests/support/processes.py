"""Processes of services and of tests, started from the repository's root and ended with their test."""

import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
Process = subprocess.Popen[bytes]


class StartedProcesses:
    """Start processes; `end` kills all of them, also stopped ones."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def start(self, module: str, *arguments: str, log: Path | None = None) -> Process:
        """Start `python -m module`; its output is appended to `log`, else it joins the tests' output."""
        command = [sys.executable, "-m", module, *arguments]
        if log is None:
            process = subprocess.Popen(command, cwd=ROOT)
        else:
            with log.open("ab") as file:
                process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill running processes and wait for all."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # Between the two.
        return False


def run_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `pentimento` with these arguments, and return its exit code and output."""
    command = [sys.executable, "-m", "pentimento.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)
