"""Test that the next `up` ends what a killed supervisor left behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pentimento.supervisor.state import MARK, clean_leftovers
from tests.integration.supervisor.started_toys import toy_suite

LEFTOVER = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""


@contextmanager
def leftover_of(state: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Run what a crashed supervisor of that state left: a process that listens on the port."""
    environment = {**os.environ, MARK: str(state)}
    with subprocess.Popen([sys.executable, "-c", LEFTOVER], env=environment, stdout=subprocess.PIPE, text=True) as left:
        assert left.stdout is not None
        try:
            # Its environment may be seen only a moment after it was made.
            yield left, int(left.stdout.readline())
        finally:
            left.kill()


def test_clean_leftovers_ends_processes_and_removes_sockets(tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    (sockets / "frontdoor.sock").touch()
    with leftover_of(tmp_path / "state") as (left, _):
        count = clean_leftovers(tmp_path / "state", sockets)

        assert count == 1
        assert left.poll() is not None
        assert not sockets.exists()


def test_up_takes_the_port_that_a_leftover_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with leftover_of(tmp_path / "state") as (left, port):
        monkeypatch.setenv("PUBLIC", f"127.0.0.1:{port}")
        with toy_suite(tmp_path) as suite:
            assert suite.is_announced()
            assert left.poll() is not None
            assert suite.stop_ends_everything()
