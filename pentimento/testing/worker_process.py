"""A worker process of a benchmark's own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# A worker that shares its cores with others may take minutes to import its libraries.
START_S = 600.0


@contextmanager
def worker_process(
    model: Path, *flags: str, core: int | None = None, module: str = "services.unet_worker"
) -> Iterator[str]:
    """On the CPU with one torch thread, over an empty object store; its address."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        address = f"unix:{folder}/worker"
        command = [sys.executable, "-m", module, "--model", str(model), "--listen", address]
        command += ["--objects-url", f"file://{folder}/objects", "--device", "cpu", "--log-level", "warning", *flags]
        with start_on(core, command) as process:
            try:
                yield address
            finally:
                process.terminate()


def start_on(core: int | None, command: Sequence[str], **how: Any) -> "subprocess.Popen[bytes]":
    """A process with one thread a library, which stays on that core with all that it starts; None: on any."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own if core is None else {core})
    try:
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **how)
    finally:
        os.sched_setaffinity(0, own)


def keep_off_a_core() -> int | None:
    """A core that this thread, and those it starts, leave to others from now on; None where there is one alone."""
    *rest, core = sorted(os.sched_getaffinity(0))
    if not rest:
        return None
    os.sched_setaffinity(0, rest)
    return core
