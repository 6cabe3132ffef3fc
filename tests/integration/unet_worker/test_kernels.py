"""A worker that is asked for fused kernels on a device that has none does not start, and says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.testing.checkpoints import write_checkpoint


@pytest.mark.parametrize("module", ["services.unet_worker", "services.unet_worker.profile"])
def test_a_cpu_is_refused_before_anything_is_loaded(tmp_path: Path, module: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    done = subprocess.run(
        [sys.executable, "-m", module, "--model", str(checkpoint), "--device", "cpu", "--kernels", "fused"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 1
    assert "fused kernels need" in done.stderr
    assert "Traceback" not in done.stderr
