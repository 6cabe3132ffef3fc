"""`pentimento up --detach`: what is started in the background, and what becomes of it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pentimento.cli import detached
from pentimento.supervisor.state import StateDirectory


def test_modules_of_the_current_folder_are_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text('raise SystemExit("the folder\'s own")')
    state = StateDirectory(tmp_path / "state")
    state.acquire()

    done = subprocess.run(
        [sys.executable, "-P", "-m", "pentimento.cli", "up", "--detach", "--state-dir", str(state.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )
    state.release()

    assert done.stderr.startswith(f"pentimento: a suite already runs on {state.path}")


def test_whoever_interrupts_the_start_has_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            detached.start_detached(StateDirectory(tmp_path / "state"), as_json=False)

        assert started[0].poll() == -signal.SIGTERM
    finally:
        started[0].kill()
        started[0].wait()
