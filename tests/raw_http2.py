"""A peer that speaks HTTP/2 frame by frame, to say what no gRPC client says: half messages, bombs, floods of streams.

Blocking, and bounded by `deadline_s` in whatever it waits for. It does not obey the server's limits unless asked to.
"""

import gzip
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions

Headers = list[tuple[str, str]]
READ_BYTES = 1 << 18


def request_headers(path: str, token: str | None = None, extra: Iterable[tuple[str, str]] = ()) -> Headers:
    """What a gRPC client sends to open a call of "/package.Service/Method"."""
    authorization = [("authorization", f"Bearer {token}")] if token is not None else []
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *authorization,
        *extra,
    ]


def announced(size_bytes: int, *, compressed: bool = False) -> bytes:
    """The five bytes before a message of that size."""
    return struct.pack(">BI", compressed, size_bytes)


def framed(message: bytes) -> bytes:
    return announced(len(message)) + message


def bomb(size_bytes: int) -> bytes:
    """A compressed message that inflates to `size_bytes` of zeros, about a thousandth on the wire."""
    packed = gzip.compress(bytes(size_bytes), 9)
    return announced(len(packed), compressed=True) + packed


class RawPeer:
    """One HTTP/2 connection to "unix:/path" or "host:port"."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, deadline_s: float = 10.0) -> None:
        self._deadline_s = deadline_s
        plain = connect(address, deadline_s)
        self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        # Its own rules would keep it from breaking those of the server.
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        self._connection = h2.connection.H2Connection(config)
        self._connection.initiate_connection()
        self.ended: dict[int, dict[str, str]] = {}
        self.closed = False
        self._flush()

    @property
    def max_concurrent_streams(self) -> int:
        """What the server allowed, once its settings came."""
        return self._connection.remote_settings.max_concurrent_streams

    def open(self, headers: Headers) -> int:
        """Opens a call with headers alone; the stream's id."""
        stream_id = self._connection.get_next_available_stream_id()
        self._connection.send_headers(stream_id, headers)
        self._flush()
        return stream_id

    def push(self, stream_id: int, data: bytes, *, end: bool = False, timeout_s: float = 1.0) -> int:
        """Sends as much of `data` as the server's windows allow, waiting up to `timeout_s` for each more; the bytes
        sent. `end` says that nothing follows, once all was sent."""
        sent = 0
        while sent < len(data) and stream_id not in self.ended and not self.closed:
            window = self._connection.local_flow_control_window(stream_id)
            size = min(window, len(data) - sent, self._connection.max_outbound_frame_size)
            if size <= 0:
                if not self.pump(timeout_s):
                    return sent
                continue
            self._connection.send_data(stream_id, data[sent : sent + size])
            self._flush()
            sent += size
            self.pump(0.0)
        if end and stream_id not in self.ended and not self.closed:
            self._connection.end_stream(stream_id)
            self._flush()
        return sent

    def reset(self, stream_id: int) -> None:
        self._connection.reset_stream(stream_id)
        self._flush()

    def pump(self, timeout_s: float) -> bool:
        """Takes in what the server sends within `timeout_s`; whether there was anything."""
        if self.closed or not self._readable(timeout_s):
            return False
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return False
        try:
            for event in self._connection.receive_data(data):
                self._note(event)
        except h2.exceptions.ProtocolError:
            self.closed = True
        self._flush()
        return True

    def await_end(self, stream_id: int) -> dict[str, str]:
        """The trailers of a call, or {"reset": code}; TimeoutError when it has not ended in time."""
        end_s = time.monotonic() + self._deadline_s
        while stream_id not in self.ended and not self.closed:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"stream {stream_id} is still open")
            self.pump(left_s)
        return self.ended.get(stream_id, {"closed": "connection"})

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()

    def _readable(self, timeout_s: float) -> bool:
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        return pending or bool(select.select([self._socket], [], [], timeout_s)[0])

    def _note(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            headers = dict(event.headers)
            if "grpc-status" in headers:
                self.ended[event.stream_id] = headers
        elif isinstance(event, h2.events.StreamReset):
            self.ended.setdefault(event.stream_id, {"reset": str(int(event.error_code))})
        elif isinstance(event, h2.events.DataReceived):
            self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.closed = True

    def _flush(self) -> None:
        data = self._connection.data_to_send()
        if not data:
            return
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True


def connect(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        made.connect(address.removeprefix("unix:"))
        return made
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)
