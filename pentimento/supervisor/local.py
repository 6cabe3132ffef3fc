"""Run a real suite for a test, a benchmark or a demonstration: `pentimento up` in a separate process.

with local_suite() as suite, Client(suite.endpoint.frontdoor) as client:
    client.generate(ImageRequest("a red circle"))
"""

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pentimento.domain.errors import Unavailable
from pentimento.supervisor.state import Endpoint, StateDirectory

# Without HTTP, which most callers do not use; a later `--http` turns it on.
COMMAND = (sys.executable, "-m", "pentimento.cli", "up", "--quiet", "--http", "")
LOOK_S = 0.01
START_LIMIT_S = 180.0


@dataclass(frozen=True)
class LocalSuite:
    """Hold a running suite. `start_s`: seconds from the start of the command until all processes serve."""

    supervisor: "subprocess.Popen[bytes]"
    endpoint: Endpoint
    state: StateDirectory
    start_s: float

    def log(self, process: str) -> str:
        """Return the log of a process so far; "up" is the supervisor's own."""
        return (self.state.logs / f"{process}.log").read_text()


@contextmanager
def local_suite(
    flags: Sequence[str] = (), *, environment: Mapping[str, str] | None = None, state_dir: Path | None = None
) -> Iterator[LocalSuite]:
    """Start a suite for the block, and drain and end it after. `flags` go to `pentimento up`; `environment` is added
    to this process's.

    Without a `state_dir` the state is deleted at the end. Raises Unavailable, with the output, if the suite fails to
    start.
    """
    folder = state_dir or Path(tempfile.mkdtemp(prefix="pentimento-"))
    state = StateDirectory(folder)
    state.make()
    started = time.monotonic()
    supervisor = start(state, flags, environment or {})
    try:
        endpoint = await_endpoint(supervisor, state, started + START_LIMIT_S)
        if endpoint is None:
            raise Unavailable("SUITE_NOT_UP", "the suite did not come up:\n" + (state.logs / "up.log").read_text())
        yield LocalSuite(supervisor, endpoint, state, time.monotonic() - started)
    finally:
        supervisor.terminate()
        supervisor.wait()
        if state_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def start(state: StateDirectory, flags: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    log = state.logs / "up.log"
    log.touch(mode=0o600)
    with log.open("w") as output:
        return subprocess.Popen(
            [*COMMAND, "--listen", "127.0.0.1:0", "--state-dir", str(state.path), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )


def await_endpoint(
    supervisor: "subprocess.Popen[bytes]", state: StateDirectory, limit: float = math.inf
) -> Endpoint | None:
    """Return the endpoint of that supervisor once all processes serve; None if it ends or the time `limit` passes
    first."""
    while supervisor.poll() is None and time.monotonic() < limit:
        endpoint = state.endpoint()
        if endpoint is not None and endpoint.supervisor_pid == supervisor.pid:
            return endpoint
        time.sleep(LOOK_S)
    return None
