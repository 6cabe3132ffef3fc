"""A real suite for a test, a benchmark or a demonstration: `pentimento up` in a process of its own.

with local_suite() as suite, Client(suite.endpoint.frontdoor) as client:
    client.generate(ImageRequest("a red circle"))
"""

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

# Without HTTP, which most have no use for; a later `--http` asks for it.
COMMAND = (sys.executable, "-m", "pentimento.cli", "up", "--quiet", "--http", "")
LOOK_S = 0.01
START_LIMIT_S = 180.0


@dataclass(frozen=True)
class LocalSuite:
    """`start_s`: from the start of the command to SERVING of all, by this process's clock."""

    supervisor: "subprocess.Popen[bytes]"
    endpoint: Endpoint
    state: StateDirectory
    start_s: float

    def log(self, process: str) -> str:
        """What a process wrote so far; "up" is the supervisor itself."""
        return (self.state.logs / f"{process}.log").read_text()


@contextmanager
def local_suite(
    flags: Sequence[str] = (), *, environment: Mapping[str, str] | None = None, state_dir: Path | None = None
) -> Iterator[LocalSuite]:
    """Up inside the block, drained and gone after it; `flags` go to `pentimento up`, `environment` is added to ours.

    Without a `state_dir` the state is thrown away. Unavailable, with what it printed, when the suite does not come up.
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


def await_endpoint(supervisor: "subprocess.Popen[bytes]", state: StateDirectory, limit: float) -> Endpoint | None:
    """The endpoint file appears once all serve. None when the supervisor ended or the time is up."""
    while supervisor.poll() is None and time.monotonic() < limit:
        endpoint = state.endpoint()
        if endpoint is not None:
            return endpoint
        time.sleep(LOOK_S)
    return None
