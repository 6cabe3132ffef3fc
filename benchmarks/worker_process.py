"""A worker process of a benchmark's own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A worker that shares its cores with others may take minutes to import its libraries.
START_S = 600.0


@contextmanager
def worker_process(model: Path, *flags: str) -> Iterator[str]:
    """On the CPU with one torch thread, over an empty object store; its address."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        address = f"unix:{folder}/worker"
        command = [sys.executable, "-m", "services.unet_worker", "--model", str(model), "--listen", address]
        command += ["--objects-url", f"file://{folder}/objects", "--device", "cpu", "--log-level", "warning", *flags]
        with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            try:
                yield address
            finally:
                process.terminate()
