"""Run a frontdoor with a worker that answers immediately, an edge before it, and a peer that only answers, as
processes.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab.fixtures.worker_process import START_S
from pentimento.rpc.probe import status_of

LOOK_S = 0.1


@dataclass(frozen=True)
class InstantSuite:
    """Name the addresses: `frontdoor` for gRPC, `edge` and `peer` as host:port for HTTP."""

    frontdoor: str
    edge: str
    peer: str
    processes: dict[str, psutil.Process]

    def processor_s(self, *names: str) -> float:
        """Return the processes' processor seconds so far."""
        times = [self.processes[name].cpu_times() for name in names]
        return sum(one.user + one.system for one in times)


@contextmanager
def instant_suite(picture_bytes: int) -> Iterator[InstantSuite]:
    """Start all processes, with images of `picture_bytes`, and stop them in the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pmt-")))
        processes = {}

        def run(name: str, module: str, *flags: str, pipes: bool = False) -> "subprocess.Popen[bytes]":
            pipe = subprocess.PIPE if pipes else None
            process = subprocess.Popen([sys.executable, "-m", module, *flags], stdin=pipe, stdout=pipe)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes[name] = psutil.Process(process.pid)
            return process

        worker, frontdoor, edge = (f"unix:{folder}/{name}" for name in ("worker", "frontdoor", "edge"))
        run("worker", "benchmarks.suites.instant_worker", worker, str(picture_bytes))
        stores = ("--ledger-url", f"sqlite:///{folder}/journal.sqlite", "--objects-url", f"file://{folder}/objects")
        quiet = ("--log-level", "error")
        # No request is refused: the path is measured, not the queue.
        room = ("--worker-addresses", worker, "--queue-limit", "4096", "--tenant-unfinished-requests", "100000")
        run("frontdoor", "services.frontdoor", "--listen", frontdoor, *stores, *room, *quiet)
        port = free_port()
        listen = ("--listen", edge, "--http-listen", f"127.0.0.1:{port}")
        run("edge", "services.edge", *listen, "--frontdoor-address", frontdoor, *quiet)
        peer = run("peer", "benchmarks.peers.fastapi_peer", str(picture_bytes), pipes=True)
        assert peer.stdout is not None
        peer_port = int(peer.stdout.readline())
        for address in (worker, frontdoor, edge):
            await_serving(address)
        yield InstantSuite(frontdoor, f"127.0.0.1:{port}", f"127.0.0.1:{peer_port}", processes)


def await_serving(address: str) -> None:
    """Return once a process reports SERVING. Raises TimeoutError otherwise."""
    until = time.monotonic() + START_S
    while status_of(address) != "SERVING":
        if time.monotonic() > until:
            raise TimeoutError(f"{address} does not serve")
        time.sleep(LOOK_S)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
