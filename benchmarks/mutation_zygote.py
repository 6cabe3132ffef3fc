"""Runs the tests of one mutant after the other in a copy of the tree, each in a process forked from this one.

What every test needs of others' packages is loaded once, here, with those that the command line names; of ours nothing
is, so that each process loads the mutant. Reads a line of JSON a mutant ([path, source, tests, seconds]), answers with
a line: "passed", "failed" and the test that did, "stopped" (it took longer, without what it waited for a processor) or
"broken" (no test was run).
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from benchmarks.mutation_plugin import PLUGINS

_PRELOADED = (
    "asyncio",
    "grpc.aio",
    "google.protobuf.descriptor_pool",
    "hypothesis.stateful",
    "numpy",
    "prometheus_client",
    "sqlalchemy.dialects.sqlite",
)
_OPTIONS = ("-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider")
_POLL_S = 0.02


def main() -> None:
    sys.dont_write_bytecode = True
    for name in (*_PRELOADED, *PLUGINS, *sys.argv[1:]):
        importlib.import_module(name)
    for number, line in enumerate(sys.stdin, start=1):
        path, source, tests, seconds = json.loads(line)
        print(verdict(Path(path), source, tests, seconds, number), flush=True)


def verdict(path: Path, source: str, tests: list[str], seconds: float, number: int) -> str:
    with mutated(path, source, number):
        child = os.fork()
        if child == 0:
            run(tests)
        return ended(child, seconds)


@contextlib.contextmanager
def mutated(path: Path, source: str, number: int):  # type: ignore[no-untyped-def]
    """Another time of change every time: what was compiled of the file is not taken for it."""
    original, times = path.read_bytes(), path.stat()
    path.write_text(source)
    os.utime(path, (times.st_atime, times.st_mtime - 10 * number))
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def run(tests: list[str]) -> None:
    """The tests in this process, which ends with pytest's code. What they start ends with its group."""
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    order = Path(f"order-{os.getpid()}")
    order.write_text("\n".join(tests))
    os.environ["PENTIMENTO_TEST_ORDER"] = str(order)
    code = 70
    with contextlib.suppress(BaseException):
        code = int(pytest.main([*_OPTIONS, *tests], [importlib.import_module(name) for name in PLUGINS]))
    os._exit(code)


def ended(child: int, seconds: float) -> str:
    status, started = 0, time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done or time.monotonic() - started - queued_s(child) > seconds:
            break
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    order = Path(f"order-{child}")
    failed = order.read_text() if order.exists() else ""
    order.unlink(missing_ok=True)
    if not done:
        os.waitpid(child, 0)
        return "stopped"
    code = os.waitstatus_to_exitcode(status)
    # 1: a test failed. 5: pytest found no test. 2, 3, 4: the mutant cannot even be imported, which any test tells.
    return {0: "passed", 1: f"failed {failed}", 5: "broken"}.get(code, "failed")


def queued_s(process: int) -> float:
    """How long its main thread was ready to run and had no processor: on a busy machine no sign that it hangs."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9


if __name__ == "__main__":
    main()
