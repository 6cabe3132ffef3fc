"""Test how a suite starts and ends, refused or killed; test_tokens.py interrupts one."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pentimento.supervisor.local import COMMAND, LocalSuite
from pentimento.supervisor.models import find_model
from pentimento.supervisor.state import marked_processes
from tests.e2e.conftest import Crash


def test_killed_supervisor_leaves_nothing_that_the_next_start_minds(crash: Crash, suite: LocalSuite) -> None:
    left = [process for process in crash.processes if process.is_running()]

    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def test_second_suite_on_the_same_state_is_refused_with_one_line(suite: LocalSuite) -> None:
    done = subprocess.run([*COMMAND, "--state-dir", str(suite.state.path)], capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"pid {suite.supervisor.pid}" in done.stderr


def corrupt(weights: Path, canary: Path) -> None:
    weights.write_bytes(b"\xff" * 1000)


def pickled(weights: Path, canary: Path) -> None:
    # Equals pickle.dumps of an object with a `__reduce__` that calls os.system.
    weights.write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")


@pytest.mark.parametrize("spoil", [corrupt, pickled])
def test_spoiled_weights_stop_the_start_with_one_clear_line(tmp_path: Path, spoil: object) -> None:
    model = tmp_path / "spoiled"
    shutil.copytree(find_model("tiny-heavy").path, model)
    (weights,) = (model / "unet").glob("*.safetensors")
    spoil(weights, tmp_path / "canary")  # type: ignore[operator] # one of the two above
    command = [*COMMAND, "--model", str(model), "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "state")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert weights.name in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 10
    assert not (tmp_path / "canary").exists()
    assert marked_processes(tmp_path / "state") == []


def test_control_plane_runs_without_torch(suite: LocalSuite) -> None:
    if sys.platform != "linux":
        pytest.skip("memory maps are read from /proc")
    for module in ("services.frontdoor", "services.controller", "services.vectordb_gateway"):
        for process in marked_processes(suite.state.path):
            if module in process.cmdline():
                mapped = {mapping.path for mapping in process.memory_maps()}
                assert not [path for path in mapped if "libtorch" in path]
