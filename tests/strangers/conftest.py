"""A whole suite that somebody else runs, and the contracts as a stranger gets them."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.strangers.environment import ROOT, run

PENTIMENTO = (sys.executable, "-m", "pentimento.sdk")


@pytest.fixture(scope="session")
def suite_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the public API of a suite with the tiny heavy model."""
    state = tmp_path_factory.mktemp("suite")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    try:
        run([*PENTIMENTO, "up", "--detach", "--listen", address, "--device", "cpu", "--state-dir", state], ROOT)
        yield address
    finally:
        subprocess.run([*PENTIMENTO, "down", "--state-dir", state], cwd=ROOT, check=False, timeout=120)
