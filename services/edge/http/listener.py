"""The HTTP listener inside this process's event loop, from bind to drain."""

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import uvicorn

from pentimento.rpc.credentials import bound_tls_buffers, server_tls
from pentimento.rpc.settings import BOUNDS, RpcServerSettings
from pentimento.rpc.transport import allow_files, files_of
from pentimento.settings import SettingsError
from services.edge.http.bounded import BoundedHttp, HttpLimits, end_longest_readers
from services.edge.settings import HttpSettings, drain_delay_of

BACKLOG = 1024
SWEEP_S = 1.0
# The largest age of the date in answers.
DATE_S = 1.0
# Polling interval of a drain.
LOOK_S = 0.01


class QuietUvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals to the process and shuts down without delay; uvicorn's own loops poll ten
    times a second."""

    def __init__(self, config: uvicorn.Config, drain_timeout_s: float) -> None:
        super().__init__(config)
        self.drain_timeout_s = drain_timeout_s
        self._asked_to_exit = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    def ask_to_exit(self) -> None:
        """Make `serve` shut down and return."""
        self.should_exit = True
        self._asked_to_exit.set()

    async def main_loop(self) -> None:
        """Renew the date of answers until `ask_to_exit`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked_to_exit.wait(), DATE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, close idle connections, wait for running answers until the drain timeout, cancel the rest."""
        state = self.server_state
        for server in self.servers:
            server.close()
        for connection in tuple(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.drain_timeout_s):
                while state.connections or state.tasks:  # noqa: ASYNC110 - sets of uvicorn's
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            for task in tuple(state.tasks):
                task.cancel()


class HttpListener:
    """Serve HTTP inside the process's event loop. Call `start`, then `drain`, each once."""

    def __init__(self, app: Any, http: HttpSettings, rpc: RpcServerSettings, limits: HttpLimits) -> None:
        bound_tls_buffers()
        tls = server_tls(rpc.tls.served)
        self._listen = http.http_listen
        self._limits = replace(limits, idle_timeout_s=http.idle_timeout_s)
        self._other_files = files_of(rpc.listen, BOUNDS.max_connections, takes_turns=False)
        self._server = QuietUvicorn(
            uvicorn.Config(
                app,
                http=functools.partial(BoundedHttp, limits=self._limits, idle={}),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                # Malformed requests are counted, not logged.
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=max(round(http.idle_timeout_s), 1),
                ssl_context_factory=(lambda *_: tls) if tls is not None else None,
            ),
            rpc.drain_timeout_s - drain_delay_of(http, rpc),
        )
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.address = ""

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""
        return len(self._server.server_state.connections)

    def bind(self) -> None:
        """Bind the socket and set `address`. SettingsError if the address is not available."""
        host, _, port = self._listen.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            # Connections inherit it. An answer is two writes, head and body: without TCP_NODELAY the second waits for
            # the first one's acknowledgement, which clients delay by 40 ms. asyncio sets it only on its own sockets.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host.strip("[]"), int(port)))
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise SettingsError(f"--http-listen {self._listen}: {error.strerror}") from error
        self._socket.setblocking(False)
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Bind, and start to serve."""
        allow_files(self._limits.connections + self._other_files)
        self.bind()
        assert self._socket is not None
        self._tasks.append(asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http"))
        self._tasks.append(asyncio.create_task(self._sweep_forever(), name="http sweep"))

    async def drain(self, timeout_s: float | None = None) -> None:
        """Stop accepting, wait for running answers (by default the drain timeout without the drain delay), then cancel
        the rest."""
        if not self._tasks:
            return
        if timeout_s is not None:
            self._server.drain_timeout_s = timeout_s
        serving, sweeping = self._tasks
        self._tasks = []
        self._server.ask_to_exit()
        await asyncio.wait([serving])
        sweeping.cancel()
        await asyncio.wait([sweeping])
        serving.result()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_S, self._limits.write_timeout_s, self._limits.header_timeout_s))
            now = time.monotonic()
            found = self._server.server_state.connections
            connections = [connection for connection in found if isinstance(connection, BoundedHttp)]
            for connection in connections:
                connection.sweep(now)
            end_longest_readers(connections, self._limits.unread_bytes)
