"""A worker that is asked for fused kernels on a device that has none does not start, and says why."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint


@pytest.mark.parametrize("module", [("services.unet_worker",), ("services.unet_worker.profiling", "cost")])
def test_a_cpu_is_refused_before_anything_is_loaded(tmp_path: Path, module: tuple[str, ...]) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-X", "importtime", "-m", *module, "--model", str(checkpoint)]

    done = subprocess.run(
        [*command, "--device", "cpu", "--kernels", "fused"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 1
    assert "fused kernels need" in done.stderr
    assert "Traceback" not in done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    if importlib.util.find_spec("triton") is None:
        assert "torch" not in imported
