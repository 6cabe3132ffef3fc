"""Listen on host:port in gRPC's place, and pass each connection on to gRPC through a Unix socket.

The name of our end of the Unix socket shows gRPC the origin of a connection: an abstract name (unix(7)), which leaves
no file. TLS ends here, since the relay distinguishes calls by their bytes on the wire.

One thread does all of it, with a separate event loop: a client without answers to its pings for 1.5 s drops the
connection, even if only the handlers' event loop is busy.
"""

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import Any

from pentimento.rpc.callers import NO_NAMES, CertificateNames, names_of_certificate
from pentimento.rpc.credentials import bound_tls_buffers
from pentimento.rpc.relay.call_turns import CallTurns
from pentimento.rpc.relay.connection import READ_BYTES, ClientEnd, Connection, ServerEnd
from pentimento.rpc.transport import HANDSHAKE_TIMEOUT_MS
from pentimento.telemetry.logs import log_unhandled

logger = logging.getLogger(__name__)

NAME = "pentimento-relay"
ALPN = "h2"
BACKLOG = 1024
# Descriptors or gRPC's backlog have run out: other connections end in this time.
RETRY_S = 0.05
CONNECT_TRIES = 20
WILDCARDS = frozenset({"0.0.0.0", "::"})


class Relay:
    """Relay the connections of one server's host:port addresses, with a limit for each address. Beyond it a new
    connection replaces a quiet one (`Connection.quiet_rank`), and is closed if every connection has a call."""

    def __init__(self, tls: ssl.SSLContext | None, max_connections: int) -> None:
        self.turns = CallTurns(self._later, self._wake)
        self._target = ""
        self._tls = tls
        bound_tls_buffers()
        self._max_connections = max_connections
        # With their connections: the addresses of one name share them.
        self._listeners: list[tuple[socket.socket, dict[asyncio.Task[None], Connection]]] = []
        # Both loops exist while the thread does.
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._handlers_loop: asyncio.AbstractEventLoop
        self._accepting: list[asyncio.Task[None]] = []
        self._serving: dict[asyncio.Task[None], Connection] = {}
        self._names = (f"\0{NAME}/{secrets.token_hex(4)}/{number}/" for number in count())
        self._shared = memoryview(bytearray(READ_BYTES))
        # In the certificates of connected clients, by our end's name.
        self._certified: dict[str, CertificateNames] = {}

    def listen(self, address: str) -> str:
        """Bind host:port and return it with its actual port. OSError if it cannot be bound."""
        host, _, port = address.rpartition(":")
        bound = bound_sockets(host.strip("[]"), int(port))
        connections = dict[asyncio.Task[None], Connection]()
        self._listeners += [(listener, connections) for listener in bound]
        return f"{host}:{bound[0].getsockname()[1]}"

    def start(self, target: Path) -> None:
        """Accept connections from now on; gRPC listens at the Unix socket `target`."""
        self._target = str(target)
        self._loop, self._handlers_loop = asyncio.new_event_loop(), asyncio.get_running_loop()
        self._loop.set_exception_handler(log_unhandled)
        self._accepting = [self._loop.create_task(self._accept(*listener)) for listener in self._listeners]
        self._thread = Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()

    def _wake(self) -> object:
        return self._loop.call_soon_threadsafe(self.turns.let_in)

    def _later(self, delay_s: float, act: Callable[[], None]) -> object:
        """Call `act` after a delay or, for 0, after one round of the handlers' event loop: a callback there has
        returned."""
        if delay_s:
            return self._loop.call_later(delay_s, act)
        return self._handlers_loop.call_soon_threadsafe(self._loop.call_soon_threadsafe, act)

    async def _accept(self, listener: socket.socket, connections: dict[asyncio.Task[None], Connection]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            if len(connections) >= self._max_connections and not _make_room(connections):
                client.close()
                continue
            connection = Connection(self.turns)
            task = loop.create_task(self._serve(connection, client, peer_name(client.family, peer)))
            self._serving[task] = connection
            connections[task] = connection
            task.add_done_callback(lambda ended: connections.pop(ended, None))
            # A connection that was closed for another before it began has not taken its socket.
            task.add_done_callback(lambda _, taken=client: taken.close())  # type: ignore[misc]
            task.add_done_callback(self._serving.pop)

    async def _serve(self, connection: Connection, client: socket.socket, peer: str) -> None:
        """Return when both ends are closed. A peer's fault ends only its own connection."""
        loop, name = asyncio.get_running_loop(), ""
        try:
            # Otherwise the second piece of an answer waits 40 ms for the first one's acknowledgement.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await loop.connect_accepted_socket(
                lambda: ClientEnd(connection, self._shared),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_MS / 1000 if self._tls else None,
            )
            if speaks_http2(transport):
                name = next(self._names) + peer
                self._certified[name] = certified_names(transport)
                ours = await connected(self._target, name)
                await loop.create_unix_connection(lambda: ServerEnd(connection), sock=ours)
                await connection.ended
        except OSError as error:
            logger.debug("connection ended", extra={"peer": peer, "error": str(error)})
            # Without this asyncio's frames, and TLS's read buffers, hold themselves until the next full collection.
            error.__traceback__ = None
        finally:
            self._certified.pop(name, None)
            connection.abort()

    def names_of(self, peer: str) -> CertificateNames | None:
        """Return the names in the certificate of a peer, by gRPC's name; None if it is not relayed. For any thread."""
        return self._certified.get(peer.replace("unix-abstract:", "\0", 1), NO_NAMES) if is_relayed(peer) else None

    async def close(self, flush_s: float) -> None:
        """Stop accepting, and return once all connections have ended, which gRPC has closed: cut off after `flush_s`.
        May be repeated."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._finish(flush_s), self._loop))
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(thread.join)
            self._loop.close()
        for listener, _ in self._listeners:
            listener.close()

    async def _finish(self, flush_s: float) -> None:
        await _cancelled(self._accepting)
        if self._serving:
            await asyncio.wait(tuple(self._serving), timeout=flush_s)
        await _cancelled(tuple(self._serving))


def _make_room(connections: dict[asyncio.Task[None], Connection]) -> bool:
    """Close the quiet connection of the lowest rank. Return False if every connection has a call."""
    quiet = ((rank, task) for task, one in connections.items() if (rank := one.quiet_rank) is not None)
    found = min(quiet, key=itemgetter(0), default=None)
    if found is None:
        return False
    _, task = found
    # It stops counting now; its end takes a round of the event loop.
    del connections[task]
    task.cancel()
    return True


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of `host`, all of one port. OSError if one cannot be bound."""
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        with suppress(OSError):
            return [_bound("::", port, socket.AF_INET6, dualstack=True)]
    bound: list[socket.socket] = []
    try:
        for family, *_, target in socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM):
            bound.append(_bound(str(target[0]), port, family, dualstack=False))
            port = bound[0].getsockname()[1]
    except OSError:
        if not bound:
            raise
    return bound


def _bound(host: str, port: int, family: int, *, dualstack: bool) -> socket.socket:
    made = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dualstack)
    made.setblocking(False)
    return made


async def connected(path: str, name: str) -> socket.socket:
    """Return a socket named `name` that is connected to the one at `path`. OSError if there is none."""
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        ours.bind(name)
        for _ in range(CONNECT_TRIES):
            with suppress(BlockingIOError):  # Its backlog is full.
                ours.connect(path)
                return ours
            await asyncio.sleep(RETRY_S)
        raise TimeoutError("gRPC has stopped accepting connections")
    except BaseException:
        ours.close()
        raise


def speaks_http2(transport: asyncio.BaseTransport) -> bool:
    """Return whether the peer agreed to HTTP/2 if TLS requires it (RFC 9113, section 3.3)."""
    secured = transport.get_extra_info("ssl_object")
    return secured is None or secured.selected_alpn_protocol() == ALPN


def certified_names(transport: asyncio.BaseTransport) -> CertificateNames:
    secured = transport.get_extra_info("ssl_object")
    return names_of_certificate(secured.getpeercert()) if secured is not None else NO_NAMES


def peer_name(family: int, peer: Any) -> str:
    """Return "ipv4:1.2.3.4:5" or "ipv6:[::1]:5", as gRPC names a peer."""
    host, port = peer[0], peer[1]
    if host.startswith("::ffff:"):
        return f"ipv4:{host.removeprefix('::ffff:')}:{port}"
    return f"ipv6:[{host}]:{port}" if family == socket.AF_INET6 else f"ipv4:{host}:{port}"


def is_relayed(peer: str) -> bool:
    """Return whether gRPC's name of a call's peer is that of a relayed connection."""
    return peer.startswith(f"unix-abstract:{NAME}/")


def relayed_peer(peer: str) -> str:
    """Return the name of the peer of a relayed connection; any other name unchanged."""
    return peer.split("/", 3)[3] if is_relayed(peer) else peer
