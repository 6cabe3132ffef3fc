"""HTTP/2 by hand, for what no gRPC client sends: messages that never end, streams without one, floods of frames."""

import asyncio
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from benchmarks.attacks.target import Answers, AttackTarget

READ_BYTES = 1 << 16
CONNECT_LIMIT_S = 5.0
FrameFlag = int
COMPRESSED, PLAIN = 1, 0


def message_prefix(length: int, flag: FrameFlag = PLAIN) -> bytes:
    """What goes before a gRPC message."""
    return struct.pack(">BI", flag, length)


class RawConnection:
    """One connection; `told` counts statuses, resets and ends of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        config = H2Configuration(client_side=True, header_encoding=None, validate_outbound_headers=False)
        self._http2 = H2Connection(config)
        self._news = asyncio.Event()
        self._open: set[int] = set()
        self.closed = False
        self.answers: Answers = Counter()

    async def begin(self) -> None:
        self._http2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        """ConnectionError when the other side has closed."""
        if self.closed:
            raise ConnectionError("closed by the suite")
        self._writer.write(self._http2.data_to_send())
        await self._writer.drain()

    async def headers(self, path: str, token: str = "", extra: tuple[tuple[str, str], ...] = ()) -> int:
        """Opens a stream and leaves it open."""
        stream = self._http2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", self._host)]
        fields += [("content-type", "application/grpc"), ("te", "trailers"), *extra]
        if token:
            fields.append(("authorization", f"Bearer {token}"))
        self._http2.send_headers(stream, fields)
        self._open.add(stream)
        await self.flush()
        return stream

    async def data(self, stream: int, data: bytes, *, end: bool) -> bool:
        """Sends as the other side's windows allow; False when it ended the stream before."""
        view = memoryview(data)
        while view:
            if self.closed or stream not in self._open:
                return False
            room = min(self._http2.local_flow_control_window(stream), self._http2.max_outbound_frame_size)
            if room <= 0:
                self._news.clear()
                await self._news.wait()
                continue
            part, view = view[:room], view[room:]
            self._http2.send_data(stream, bytes(part), end_stream=end and not view)
            await self.flush()
        return True

    async def reset(self, stream: int) -> None:
        if stream in self._open:
            self._open.discard(stream)
            self._http2.reset_stream(stream)
            await self.flush()

    async def ping(self) -> None:
        self._http2.ping(b"\0" * 8)
        await self.flush()

    async def raw(self, frame: bytes) -> None:
        """Bytes past the library."""
        if self.closed:
            raise ConnectionError("closed by the suite")
        self._writer.write(frame)
        await self._writer.drain()

    async def all_answered(self, limit_s: float) -> None:
        """Returns when no stream is open, or after the limit; those left are told as UNANSWERED."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._open and not self.closed:
                    self._news.clear()
                    await self._news.wait()
        self.answers["UNANSWERED"] += len(self._open)

    async def read_for_ever(self) -> None:
        """Answers what HTTP/2 wants answered, and counts what is told."""
        try:
            while data := await self._reader.read(READ_BYTES):
                for event in self._http2.receive_data(data):
                    self._hear(event)
                self._news.set()
                await self.flush()
        except (OSError, ProtocolError) as error:
            self.answers[type(error).__name__] += 1
        finally:
            self.closed = True
            self._news.set()

    def _hear(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            status = dict(event.headers or ()).get(b"grpc-status")
            if status is not None:
                self.answers[f"grpc-status {status.decode()}"] += 1
                self._open.discard(event.stream_id)
        elif isinstance(event, StreamReset):
            self.answers[f"RST_STREAM {event.error_code!s}"] += 1
            self._open.discard(event.stream_id)
        elif isinstance(event, ConnectionTerminated):
            self.answers[f"GOAWAY {event.error_code!s}"] += 1


@asynccontextmanager
async def raw_connection(target: AttackTarget, address: str) -> AsyncIterator[RawConnection]:
    """Its reader runs inside the block. OSError when it is refused; what breaks it inside is told, not raised."""
    async with asyncio.timeout(CONNECT_LIMIT_S):
        reader, writer = await open_streams(target, address)
    connection = RawConnection(reader, writer, address)
    try:
        await connection.begin()
    except OSError:
        writer.close()
        raise
    reading = asyncio.create_task(connection.read_for_ever())
    try:
        yield connection
    except (OSError, ProtocolError) as error:
        connection.answers[type(error).__name__] += 1
    finally:
        reading.cancel()
        writer.close()
        with suppress(asyncio.CancelledError, OSError):
            await reading


async def open_streams(target: AttackTarget, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    context = None
    if ca := target.certificate(address):
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
    return await asyncio.open_connection(host, int(port), ssl=context)
