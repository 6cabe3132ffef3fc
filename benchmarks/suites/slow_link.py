"""Run a link of a given bit rate between two processes of one machine, as a separate process.

    python -m benchmarks.suites.slow_link unix:/tmp/link unix:/tmp/replica --gbit 10

A token bucket limits the bytes from one socket to the other, in each direction at the link's rate, shared by all
connections. No latency is added: a data centre's is small compared with the residuals' time.
"""

import argparse
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# sent in one piece: a fifth of a millisecond at 10 Gb/s
PART_BYTES = 256 * 1024
START_S = 30.0


class TokenBucket:
    """Let bytes through at a rate, with bursts of up to `burst_bytes` after a pause. Threads may share it."""

    def __init__(
        self,
        bytes_per_s: float,
        burst_bytes: int = PART_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = monotonic()

    def spend(self, byte_count: int) -> None:
        """Return once `byte_count` bytes may pass. The next waits are shorter after a sleep that was too long."""
        with self._lock:
            now = self._monotonic()
            self._free_at = max(self._free_at, now - self._burst_s) + byte_count / self._bytes_per_s
            wait_s = self._free_at - now
        if wait_s > 0.0:
            self._sleep(wait_s)


def pump(source: socket.socket, target: socket.socket, bucket: TokenBucket) -> None:
    """Carry bytes until one end closes."""
    buffer = memoryview(bytearray(PART_BYTES))
    try:
        while count := source.recv_into(buffer):
            bucket.spend(count)
            target.sendall(buffer[:count])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # the other side notices by its socket
        for end in (source, target):
            end.close()


def serve(listen: str, target: str, bytes_per_s: float) -> None:
    """Accept connections forever; both addresses are paths of unix sockets."""
    there, back = TokenBucket(bytes_per_s), TokenBucket(bytes_per_s)
    server = socket.socket(socket.AF_UNIX)
    server.bind(listen)
    server.listen()
    while True:
        near, _ = server.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(target)
        for ends, bucket in (((near, far), there), ((far, near), back)):
            threading.Thread(target=pump, args=(*ends, bucket), daemon=True).start()


@contextmanager
def slow_link(target: str, gbit_per_s: float) -> Iterator[str]:
    """Start a link to an address "unix:PATH", and yield the link's."""
    address = f"{target}-link"
    command = [sys.executable, "-m", "benchmarks.suites.slow_link", address, target, "--gbit", str(gbit_per_s)]
    with subprocess.Popen(command) as process:
        try:
            _await_socket(Path(address.removeprefix("unix:")))
            yield address
        finally:
            process.terminate()


def _await_socket(path: Path) -> None:
    give_up_at = time.monotonic() + START_S
    while not path.exists():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{path}: the link did not start")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.slow_link", description=__doc__)
    parser.add_argument("listen")
    parser.add_argument("target")
    parser.add_argument("--gbit", type=float, required=True, help="gigabits per second in each direction")
    asked = parser.parse_args()
    listen, target = (address.removeprefix("unix:") for address in (asked.listen, asked.target))
    serve(listen, target, asked.gbit * 1e9 / 8)


if __name__ == "__main__":
    main()
