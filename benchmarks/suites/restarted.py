"""Run a suite with a supervisor that may die, and start it again on the same state by `pentimento up`."""

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.suites.processes import members
from pentimento.cli.suite_running import with_free_port
from pentimento.domain.errors import Unavailable
from pentimento.supervisor.local import START_LIMIT_S, await_endpoint, start
from pentimento.supervisor.state import StateDirectory


class RestartedSuite:
    """Control the suite; the public API's `address` is the same after every start."""

    def __init__(self, folder: Path, flags: Sequence[str], environment: dict[str, str]) -> None:
        self.state = StateDirectory(folder)
        self.state.logs.mkdir(parents=True, exist_ok=True)
        self.address = with_free_port("--listen", "127.0.0.1:0")
        self._flags = (*flags, "--listen", self.address)
        self._environment = environment
        self.supervisor: subprocess.Popen[bytes] | None = None

    @property
    def journal(self) -> Path:
        return self.state.path / "frontdoor.sqlite"

    def up(self) -> float:
        """Start, and return the seconds until all serve. Raises Unavailable with the output if they do not."""
        began = time.monotonic()
        self.supervisor = start(self.state, self._flags, self._environment)
        if await_endpoint(self.supervisor, self.state, began + START_LIMIT_S) is None:
            raise Unavailable("SUITE_NOT_UP", (self.state.logs / "up.log").read_text()[-2000:])
        return time.monotonic() - began

    def runs(self) -> bool:
        return self.supervisor is not None and self.supervisor.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.supervisor is not None
        self.supervisor.send_signal(number)

    def down(self) -> None:
        """Drain and stop the suite."""
        assert self.supervisor is not None
        self.supervisor.terminate()
        self.supervisor.wait()

    def members(self) -> dict[str, psutil.Process]:
        return members(self.state.path)

    def orphans(self) -> list[str]:
        """Return processes of this suite that no running supervisor started."""
        own = descendants(self.supervisor.pid) if self.supervisor is not None and self.runs() else set()
        return [name for name, process in self.members().items() if process.pid not in own]


def descendants(pid: int) -> set[int]:
    try:
        return {process.pid for process in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()


@contextmanager
def restarted_suite(flags: Sequence[str], environment: dict[str, str]) -> Iterator[RestartedSuite]:
    """Run the suite inside the block; then remove its processes and its state."""
    with tempfile.TemporaryDirectory(prefix="pentimento-", ignore_cleanup_errors=True) as folder:
        suite = RestartedSuite(Path(folder), flags, environment)
        try:
            suite.up()
            yield suite
        finally:
            if suite.runs():
                suite.down()
            for process in suite.members().values():
                process.kill()
