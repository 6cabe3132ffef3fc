"""Runs the tests of the Triton kernels, `interpreted_kernels.py`, in a process whose Triton interprets: that is settled
when Triton is first imported, and torch imports it for itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.testing.machine import ROOT


def test_the_kernels_compute_what_they_should() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not shown to be right")
    tests = Path(__file__).with_name("interpreted_kernels.py")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout
