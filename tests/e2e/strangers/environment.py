"""Build environments with only an outside client's packages."""

import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
UNREACHABLE = re.compile(
    r"NameResolutionError|Failed to establish a new connection|Temporary failure in name resolution"
    r"|no such host|i/o timeout"
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ReadTimeoutError|Read timed out"
)


def run(command: Sequence[str | Path], folder: Path, *, limit_s: float = 280) -> str:
    """Run a command that must succeed, and return its output. Skip the test if no package registry can be reached."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0 and UNREACHABLE.search(done.stderr):
        pytest.skip(f"no package registry can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def fresh_python(folder: Path, *packages: str | Path) -> Path:
    """Create a venv with only `packages` and their dependencies, in the tested versions, and return its interpreter."""
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints" / "base.txt", *packages], folder)
    return python
