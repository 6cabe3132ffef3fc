"""A suite in the background: its start, its end, and its numbers of processes."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pentimento.cli import control
from pentimento.cli.control import wait_until_settled
from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.scaling import GroupStatus, ReplicaFiles
from pentimento.supervisor.state import StateDirectory


@pytest.mark.slow
def test_modules_of_the_current_folder_are_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text('raise SystemExit("the folder\'s own")')
    state = StateDirectory(tmp_path / "state")
    state.acquire()
    # As before the owner of the lock writes its pid: a started process finds the lock taken.
    (state.path / "lock").write_text("")

    done = up_detached(state, tmp_path)
    state.release()

    assert done.stderr.startswith(f"pentimento: a suite already runs on {state.path} (pid unknown)")


def test_a_suite_that_runs_keeps_its_log(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.acquire()
    (state.logs / "up.log").write_text("all processes serve\n")

    done = up_detached(state, tmp_path)
    state.release()

    assert done.returncode == 1
    assert (state.logs / "up.log").read_text() == "all processes serve\n"


def test_start_that_ends_without_message_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(["false"], **options))
    state = StateDirectory(tmp_path / "state")

    assert control.start_detached(state, as_json=False) == 1

    log = state.logs / "up.log"
    assert f"the suite ended before it served, and {log} is empty: is its disk full?" in capsys.readouterr().err


def up_detached(state: StateDirectory, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pentimento.cli", "up", "--detach", "--state-dir", str(state.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)


def test_interrupted_start_leaves_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def sleeping(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(["sleep", "600"], **options))
        return started[0]

    def interrupted(state: StateDirectory) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", sleeping)
    monkeypatch.setattr(StateDirectory, "endpoint", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            control.start_detached(StateDirectory(tmp_path / "state"), as_json=False)

        assert started[0].poll() == -signal.SIGTERM
    finally:
        started[0].kill()
        started[0].wait()


def test_suite_that_stops_during_wait_is_reported(tmp_path: Path) -> None:
    files = ReplicaFiles(tmp_path)
    files.forget()

    with pytest.raises(FailedPrecondition, match="embedder: the suite has stopped"):
        wait_until_settled(files, "embedder", 2, GroupStatus(1), 60.0)
