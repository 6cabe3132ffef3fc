"""Start child processes; report their lines as they come, and their end even while grandchildren hold the output."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from pentimento.supervisor.state import MARK, SUPERVISOR

LAUNCHER = Path(__file__).with_name("launch.py")
SOURCE_ROOT = Path(__file__).resolve().parents[2]
MAX_LINE_BYTES = 64 * 1024


class ChildProtocol(asyncio.SubprocessProtocol):
    """Report lines and the exit separately: asyncio's `Process.wait` also waits for the output to close, which a
    grandchild may hold open for ever."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))
        self.closed.set()


class Child:
    """Control a running service, which has its own session and so its own process group."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: ChildProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self.pid = transport.get_pid()

    async def wait(self) -> int:
        """Read the last lines, kill the service's own children, and return its exit code, negative for a signal."""
        await self._protocol.exited.wait()
        # A child of the child would hold the locks and sockets that the next start needs.
        self.kill_group()
        await self._protocol.closed.wait()
        code = self._transport.get_returncode()
        assert code is not None
        self._transport.close()
        return code

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._transport.send_signal(signal.SIGTERM)

    def kill_group(self) -> None:
        """Kill the process group. Its id is the process's pid; it exists as long as any member does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


async def start_child(
    module: str,
    arguments: tuple[str, ...],
    mark: str,
    on_line: Callable[[str], None],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Child:
    """Run `python -m module` through the launcher. `on_line` receives stdout and stderr; `environment` is added to
    this process's."""
    own = {MARK: mark, SUPERVISOR: str(os.getpid()), "PYTHONUNBUFFERED": "1", "PYTHONPATH": source_path()}
    transport, protocol = await asyncio.get_running_loop().subprocess_exec(
        lambda: ChildProtocol(on_line),
        *(sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())),
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment, **own},
        start_new_session=True,
    )
    return Child(transport, protocol)


def source_path() -> str:
    """Return a module path that finds the services next to this package, installed or not, from any folder."""
    return os.pathsep.join(filter(None, (str(SOURCE_ROOT), os.environ.get("PYTHONPATH", ""))))
