"""An S3-speaking server for tests: moto's, in a separate process, over HTTP."""

import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import IO


@contextmanager
def running_s3_server() -> Iterator[str]:
    """Start a server on a free port and yield its endpoint."""
    command = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        endpoint = _endpoint(server.stderr)
        # It logs every request: a full pipe would block it.
        Thread(target=deque, args=(server.stderr, 0), daemon=True).start()
        try:
            yield endpoint
        finally:
            server.kill()


def _endpoint(log: IO[str]) -> str:
    for line in log:
        if found := re.search(r"Running on (http://\S+)", line):
            return found[1]
    raise RuntimeError("moto's server ended before it listened")
