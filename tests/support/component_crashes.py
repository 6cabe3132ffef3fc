"""Run `component_crash_process`: a component store that crashes at every change of its disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

SCENARIOS = (
    "download",
    "download without sums",
    "download of an unknown digest",
    "eviction",
    "deletion",
    "quarantine",
    "swap of models",
)
# Without them root may write to files that their owner made read-only, as no service can.
_ROOTS_RIGHTS = "-dac_override,-dac_read_search,-fowner"


def crash_components(folder: Path, scenario: str, kind: str, stride: int = 1, connections: int = 1) -> int:
    """Return the number of crashes. Raises AssertionError with the output if what remains is wrong."""
    command = [sys.executable, "-m", "tests.support.component_crash_process", str(folder), scenario, kind]
    command += [str(stride), str(connections)]
    if os.geteuid() == 0 and shutil.which("setpriv"):
        command = ["setpriv", f"--bounding-set={_ROOTS_RIGHTS}", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])
