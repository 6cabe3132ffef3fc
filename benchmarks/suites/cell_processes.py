"""Run frontdoors as cells, with a worker that answers immediately and an edge, as processes."""

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.suites.instant import await_serving, free_port
from pentimento.domain.tenants import Role
from pentimento.policies.cells import rendezvous
from pentimento.rpc.tokens import token_entry

PICTURE_BYTES = 16 * 1024
SERVICE_TOKEN = "service"
QUIET = ("--log-level", "error")
# No request is rejected: the path is measured, not the queue.
ROOM = ("--queue-limit", "4096", "--tenant-unfinished-requests", "100000")


def tenants_of(count: int) -> tuple[str, ...]:
    """Return the tenants; the token of each is its name."""
    return tuple(f"tenant-{number}" for number in range(count))


def write_tokens(folder: Path, tenants: Sequence[str]) -> Path:
    """Write the tenants' tokens and the services' own, which has a file too."""
    entries = [token_entry(tenant, tenant, frozenset({Role.USER})) for tenant in tenants]
    file = folder / "tokens.toml"
    file.write_text("".join([*entries, token_entry(SERVICE_TOKEN, "suite", frozenset({Role.SERVICE}))]))
    (folder / "service-token").write_text(SERVICE_TOKEN)
    return file


class CellProcesses:
    """Start, stop and kill the processes by name. `names`: every cell that may run."""

    def __init__(self, folder: Path, tenants: Sequence[str], names: Sequence[str]) -> None:
        self.folder = folder
        self.tenants = tenants
        self._tokens = write_tokens(folder, tenants)
        self._cells = ",".join(f"{name}={self.address(name)}" for name in names)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.edge = f"127.0.0.1:{free_port()}"
        self._run("worker", "benchmarks.suites.instant_worker", self.address("worker"), str(PICTURE_BYTES))

    def address(self, name: str) -> str:
        return f"unix:{self.folder / name}"

    def processor_s(self, *names: str) -> float:
        """Return the processes' seconds on a processor so far."""
        times = [psutil.Process(self._running[name].pid).cpu_times() for name in names]
        return float(sum(one.user + one.system for one in times))

    def start(
        self,
        name: str,
        *lists: str,
        alone: bool = False,
        standby: bool = False,
        module: str = "services.frontdoor",
    ) -> None:
        """Start a cell, or one frontdoor `alone`, and return once it serves. A standby does not serve."""
        process = f"{name}-standby" if standby else name
        cells = () if alone else ("--cells", self._cells, "--cell-lists", ",".join(lists))
        stores = self.folder / f"stores-{name}"
        stores.mkdir(exist_ok=True)
        self._run(
            process,
            module,
            *("--listen", self.address(process), "--frontdoor-id", name, "--instance-id", process),
            *("--ledger-url", f"sqlite:///{stores}/journal.sqlite", "--objects-url", f"file://{stores}/objects"),
            *("--tenants-url", f"sqlite:///{self.folder}/tenants.sqlite"),
            *("--token-file", str(self._tokens), "--service-token-file", str(self.folder / "service-token")),
            *("--worker-addresses", self.address("worker"), *cells, *ROOM, *QUIET, *(["--standby"] if standby else [])),
        )
        if not standby:
            await_serving(self.address(process))

    def start_edge(self, *lists: str) -> None:
        """Start the edge, and return once it listens."""
        listen = ("--listen", self.address("edge"), "--http-listen", self.edge, "--drain-delay-s", "0")
        cells = ("--cells", self._cells, "--cell-lists", ",".join(lists))
        self._run("edge", "services.edge", *listen, *cells, *QUIET)
        await_serving(self.address("edge"))

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a process, and return once it has ended."""
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait()

    def accepted(self) -> Counter[tuple[str, str]]:
        """Return the requests of all journals by tenant and idempotency key."""
        found: Counter[tuple[str, str]] = Counter()
        for journal in self.folder.glob("stores-*/journal.sqlite"):
            with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30.0)) as connection:
                found.update(connection.execute("select tenant, idempotency_key from journal_requests"))
        return found

    def homes(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the cell of each tenant, among these."""
        return {tenant: rendezvous(tenant, names) for tenant in self.tenants}

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def _run(self, name: str, module: str, *flags: str) -> None:
        self._running[name] = subprocess.Popen([sys.executable, "-m", module, *flags])


@contextmanager
def cell_processes(tenant_count: int, names: Sequence[str]) -> Iterator[CellProcesses]:
    """Start the worker and yield the processes; all end with the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pmt-")))
        processes = CellProcesses(folder, tenants_of(tenant_count), names)
        stack.callback(processes.end)
        await_serving(processes.address("worker"))
        yield processes
