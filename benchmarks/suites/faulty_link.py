"""Forward TCP connections, and disturb them: refuse, delay, or change bytes of answers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

PIECE_BYTES = 2**16
# An answer's head, its errors and lists are smaller; images and latents are larger.
LEAST_WRONG_BYTES = 2000
SLOW_S = 1.0


class LinkFault(Enum):
    """Name what a link does to connections."""

    NONE = "none"
    OUTAGE = "outage"
    SLOW = "slow answers"
    WRONG = "wrong bytes"


class FaultyLink:
    """Listen on `host`, and forward each connection to the address that `target` returns; None refuses it."""

    def __init__(self, target: Callable[[], str | None], host: str = "127.0.0.1", port: int = 0) -> None:
        self._target = target
        self._host = host
        self._fault = LinkFault.NONE
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._forwarding: set[asyncio.Task[None]] = set()
        self.port = port

    @property
    def address(self) -> str:
        """Return the address that it listens on, once started."""
        return f"{self._host}:{self.port}"

    async def start(self) -> None:
        """Listen, on a free port if none was given."""
        self._server = await asyncio.start_server(self._begin, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        self._end_all()
        if self._forwarding:
            await asyncio.wait(self._forwarding)

    def disturb(self, fault: LinkFault) -> None:
        """Apply a fault from now on, NONE to end it; an outage ends the open connections."""
        self._fault = fault
        if fault is LinkFault.OUTAGE:
            self._end_all()

    def _end_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = None if self._fault is LinkFault.OUTAGE else self._target()
        if target is None:
            return await reset(writer)
        host, _, port = target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return await reset(writer)
        ends = {writer, far_writer}
        self._open |= ends
        pumps = {
            asyncio.create_task(self._pump(reader, far_writer, False)),
            asyncio.create_task(self._pump(far_reader, writer, True)),
        }
        # A side that has ended or was reset ends the other one, as a killed process's connection does.
        _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pending:
            pump.cancel()
        await asyncio.wait(pumps)
        self._open -= ends
        for end in ends:
            await ended(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if answers and self._fault is LinkFault.SLOW:
                    await asyncio.sleep(SLOW_S)
                if answers and self._fault is LinkFault.WRONG and len(piece) > LEAST_WRONG_BYTES:
                    piece = piece[:-1] + bytes([piece[-1] ^ 1])
                writer.write(piece)
                await writer.drain()


async def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a killed process does."""
    writer.transport.abort()
    await ended(writer)


async def ended(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
