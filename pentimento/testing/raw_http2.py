"""HTTP/2 by hand, for what no gRPC client sends: half messages, bombs, streams without a message, floods of frames."""

import asyncio
import gzip
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

READ_BYTES = 1 << 16
CONNECT_LIMIT_S = 60.0
FLUSH_S = 0.5


def message_prefix(size_bytes: int, *, compressed: bool = False) -> bytes:
    """Return the five bytes before a gRPC message of that size."""
    return struct.pack(">BI", compressed, size_bytes)


def framed(message: bytes) -> bytes:
    """Return a gRPC message with its prefix."""
    return message_prefix(len(message)) + message


def gzip_bomb(size_bytes: int) -> bytes:
    """Return a compressed gRPC message that inflates to `size_bytes` of zeros, about a thousandth on the wire."""
    packed = gzip.compress(bytes(size_bytes))
    return message_prefix(len(packed), compressed=True) + packed


class RawConnection:
    """One HTTP/2 connection to a gRPC server. `ended` holds how each stream ended: its trailers, or {"reset": code};
    `answers` counts statuses, resets and ends of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self._reader = reader
        self._writer = writer
        self._authority = authority
        # The library's own rules would keep it from breaking those of the server.
        config = H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        self._http2 = H2Connection(config)
        self._news = asyncio.Event()
        self._open: set[int] = set()
        self.greeted = False
        self.closed = False
        self.ended: dict[int, dict[str, str]] = {}
        self.answers: Counter[str] = Counter()

    @property
    def max_concurrent_streams(self) -> int:
        """How many streams the server allows, once its settings came."""
        return self._http2.remote_settings.max_concurrent_streams

    async def begin(self) -> None:
        """Send the client's half of the greeting."""
        self._http2.initiate_connection()
        await self._flush()

    async def headers(self, path: str, token: str | None = None, extra: Sequence[tuple[str, str]] = ()) -> int:
        """Open a call of "/package.Service/Method" with headers alone and return its stream."""
        stream = self._http2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", self._authority)]
        fields += [("content-type", "application/grpc"), ("te", "trailers"), *extra]
        if token:
            fields.append(("authorization", f"Bearer {token}"))
        self._http2.send_headers(stream, fields)
        self._open.add(stream)
        await self._flush()
        return stream

    async def data(self, stream: int, data: bytes, *, end: bool = False, limit_s: float | None = None) -> int:
        """Send as much as the server's windows allow, waiting up to `limit_s` for each more, and return the bytes sent.
        `end` says that nothing follows, once all was sent."""
        left = memoryview(data)
        while left and self._is_open(stream):
            room = min(self._http2.local_flow_control_window(stream), self._http2.max_outbound_frame_size)
            if room > 0:
                self._http2.send_data(stream, bytes(left[:room]))
                left = left[room:]
                await self._flush()
            elif not await self._hear_something(limit_s):
                break
        if end and not left and self._is_open(stream):
            self._http2.end_stream(stream)
            await self._flush()
        return len(data) - len(left)

    async def reset(self, stream: int) -> None:
        """Reset a stream that is still open."""
        if stream in self._open:
            self._open.discard(stream)
            self._http2.reset_stream(stream)
            await self._flush()

    async def ping(self) -> None:
        """Send a ping."""
        self._http2.ping(b"\0" * 8)
        await self._flush()

    async def raw(self, frame: bytes) -> None:
        """Send bytes past the library."""
        self._check_open()
        self._writer.write(frame)
        await self._writer.drain()

    async def end_of(self, stream: int, limit_s: float = 60.0) -> dict[str, str]:
        """Return how a stream ended, or {"closed": "connection"}. TimeoutError when it has not ended in time."""
        async with asyncio.timeout(limit_s):
            while self._is_open(stream):
                await self._hear_something()
        return self.ended.get(stream, {"closed": "connection"})

    async def all_answered(self, limit_s: float) -> None:
        """Wait until no stream is open, or for the limit; count those left as UNANSWERED."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._open and not self.closed:
                    await self._hear_something()
        self.answers["UNANSWERED"] += len(self._open)

    async def greeting(self, limit_s: float = 60.0) -> None:
        """Wait for the server's settings, or until it closes the connection. TimeoutError when neither comes."""
        async with asyncio.timeout(limit_s):
            while not self.greeted and not self.closed:
                await self._hear_something()

    async def closing(self, limit_s: float = 60.0) -> None:
        """Wait until the server closes the connection. TimeoutError when it does not."""
        async with asyncio.timeout(limit_s):
            while not self.closed:
                await self._hear_something()

    async def read_for_ever(self) -> None:
        """Answer what HTTP/2 wants answered, and note what is told, until the server closes."""
        try:
            while data := await self._reader.read(READ_BYTES):
                for event in self._http2.receive_data(data):
                    self._note(event)
                self._news.set()
                await self._flush()
        except (OSError, ProtocolError) as error:
            self.answers[type(error).__name__] += 1
        finally:
            self.closed = True
            self._news.set()

    def _note(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            trailers = {str(name): str(value) for name, value in event.headers or ()}
            if "grpc-status" in trailers:
                self._end(event.stream_id, trailers, f"grpc-status {trailers['grpc-status']}")
        elif isinstance(event, StreamReset):
            self._end(event.stream_id, {"reset": str(int(event.error_code or 0))}, f"RST_STREAM {event.error_code!s}")
        elif isinstance(event, ConnectionTerminated):
            self.answers[f"GOAWAY {event.error_code!s}"] += 1
        elif isinstance(event, RemoteSettingsChanged):
            self.greeted = True

    def _end(self, stream: int | None, how: dict[str, str], answer: str) -> None:
        self.answers[answer] += 1
        if stream is not None:
            self._open.discard(stream)
            self.ended.setdefault(stream, how)

    def _is_open(self, stream: int) -> bool:
        return stream in self._open and not self.closed

    async def _hear_something(self, limit_s: float | None = None) -> bool:
        """Wait for what the server sends; False where nothing came in time."""
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self._news.wait()
        return False

    async def _flush(self) -> None:
        self._check_open()
        self._writer.write(self._http2.data_to_send())
        await self._writer.drain()

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionError("closed by the server")


@asynccontextmanager
async def raw_connection(
    address: str, tls: ssl.SSLContext | None = None, authority: str = "localhost"
) -> AsyncIterator[RawConnection]:
    """Connect to "unix:/path" or "host:port" and read inside the block. Every method that sends raises ConnectionError
    once the server has closed, and h2's ProtocolError where HTTP/2 has no such step."""
    async with asyncio.timeout(CONNECT_LIMIT_S):
        reader, writer = await open_streams(address, tls)
    connection = RawConnection(reader, writer, authority)
    try:
        await connection.begin()
        reading = asyncio.create_task(connection.read_for_ever())
        try:
            yield connection
        finally:
            reading.cancel()
            await asyncio.wait({reading})
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """What the server does not read within `FLUSH_S` is thrown away."""
    writer.close()
    closing = asyncio.ensure_future(writer.wait_closed())
    done, _ = await asyncio.wait({closing}, timeout=FLUSH_S)
    if not done:
        writer.transport.abort()
    with suppress(OSError):
        await closing


async def open_streams(
    address: str, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and return what is read from and written to."""
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=tls)
