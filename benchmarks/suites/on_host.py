"""Run a service on a virtual host: `python -m benchmarks.suites.on_host NAMESPACE MODULE ARGUMENTS…`."""

import os
import runpy
import sys
import threading
import time
from typing import SupportsIndex

from benchmarks.suites.virtual_hosts import enter_network


def _sleep(seconds: float | SupportsIndex) -> None:
    threading.Event().wait(float(seconds))


if __name__ == "__main__":
    _, namespace, module, *arguments = sys.argv
    # Before any other thread exists: only this one moves.
    enter_network(namespace)
    if os.environ.pop("LD_PRELOAD", None):
        # libfaketime refuses the monotonic sleeps of Python. The service's own children keep the machine's clock.
        time.sleep = _sleep
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
