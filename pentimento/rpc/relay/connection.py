"""Relay one connection: bytes both ways, and calls that wait for their turn. Their beginnings and ends are found in the
bytes of HTTP/2 (RFC 9113, sections 3.4 and 4.1)."""

import asyncio
from typing import cast

from pentimento.rpc.relay.call_turns import CallTurns

PREFACE_BYTES = 24
FRAME_HEADER_BYTES = 9
DATA, HEADERS, RST_STREAM, PING, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x6, 0x8
STREAM_BITS = 0x7FFFFFFF
# A flag of DATA and HEADERS frames.
END_STREAM = 0x1


class CallFrames:
    """Follow the frames of one connection. Nothing is validated: bytes that are not HTTP/2 pass on unchanged, to
    gRPC."""

    __slots__ = ("_last_stream", "_next_stream", "_unseen_bytes", "open_streams")

    def __init__(self) -> None:
        # Running calls, without calls that the client reset; a caller that sees another end removes it.
        self.open_streams: set[int] = set()
        # Unread bytes of the current frame, or of the preface.
        self._unseen_bytes = PREFACE_BYTES
        self._last_stream = 0
        self._next_stream = 0

    def next_call(self, data: bytes | bytearray, start: int) -> tuple[int, bool]:
        """Return how far `data` continues from `start` without a new call, and whether one begins there.

        An incomplete frame header is not passed: it must be offered again, with the bytes after it. A call is offered
        again until `begin_call`. A stream's later HEADERS frames are its trailers.
        """
        at = start
        while True:
            step = min(self._unseen_bytes, len(data) - at)
            self._unseen_bytes -= step
            at += step
            if self._unseen_bytes or len(data) - at < FRAME_HEADER_BYTES:
                return at, False
            if data[at + 3] == HEADERS:
                self._next_stream = int.from_bytes(data[at + 5 : at + 9]) & STREAM_BITS
                if self._next_stream > self._last_stream:
                    return at, True
            elif data[at + 3] == RST_STREAM:
                self._reset(data, at)
            self._unseen_bytes = FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 3])

    def overtaking(self, data: bytearray, start: int) -> tuple[list[bytes], int]:
        """Return the frames from `start` on that need not wait with the last reported call, and remove them from
        `data`; then the end of the scan. A frame begins at `start`; an incomplete one is left.

        These are pings, and frames of running calls or of the connection's window. Header blocks keep their order: each
        is decoded by the earlier ones (RFC 7541, section 2.2).
        """
        passed, kept, at, kept_from = list[bytes](), list[bytes](), start, start
        while len(data) - at >= FRAME_HEADER_BYTES:
            end = at + FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 3])
            if end > len(data):
                break
            if self._may_overtake(data[at + 3], int.from_bytes(data[at + 5 : at + 9]) & STREAM_BITS):
                kept.append(bytes(data[kept_from:at]))
                passed.append(bytes(data[at:end]))
                kept_from = end
                if data[at + 3] == RST_STREAM:
                    self._reset(data, at)
            at = end
        if passed:
            kept.append(bytes(data[kept_from:at]))
            data[start:at] = b"".join(kept)
        return passed, at - sum(map(len, passed))

    def _may_overtake(self, kind: int, stream: int) -> bool:
        return kind == PING or (kind in (DATA, RST_STREAM, WINDOW_UPDATE) and stream <= self._last_stream)

    def _reset(self, data: bytes | bytearray, at: int) -> None:
        self.open_streams.discard(int.from_bytes(data[at + 5 : at + 9]) & STREAM_BITS)

    def begin_call(self) -> None:
        """Let the last reported call continue."""
        self._last_stream = self._next_stream
        self.open_streams.add(self._last_stream)


class AnswerFrames:
    """Follow the frames that a server sends on one connection, to find the calls that they end."""

    __slots__ = ("_piece", "_unseen_bytes")

    def __init__(self) -> None:
        # Unread bytes of the current frame, after its header.
        self._unseen_bytes = 0
        # The incomplete header of a frame.
        self._piece = b""

    def ended_streams(self, data: bytes) -> list[int]:
        """Return the streams that end among these bytes, which continue those of the previous call."""
        if self._piece:
            data = self._piece + data
        ended, at = list[int](), self._unseen_bytes
        while len(data) - at >= FRAME_HEADER_BYTES:
            kind, flags = data[at + 3], data[at + 4]
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                ended.append(int.from_bytes(data[at + 5 : at + 9]) & STREAM_BITS)
            at += FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 3])
        self._unseen_bytes = max(at - len(data), 0)
        self._piece = data[at:]
        return ended


READ_BYTES = 32 * 1024
# A waiting connection is read up to this size, so that its pings are answered and running calls continue: the headers
# of all calls that it may open, and its window of messages. If all together hold more than the second number, each
# waiting one is read up to a single read's size.
AHEAD_BYTES = 256 * 1024
AHEAD_TOTAL_BYTES = 64 * 1024 * 1024
# Held for a peer that reads slowly.
UNSENT_BYTES = 64 * 1024
# For gRPC's last bytes to a peer that reads them.
FLUSH_S = 3.0


class Connection:
    """Join the two ends of a connection. A call waits for its turn, and the following bytes of its connection with it,
    except for frames that may overtake it (`CallFrames.overtaking`)."""

    def __init__(self, turns: CallTurns) -> None:
        self._turns = turns
        self._frames = CallFrames()
        self._answers = AnswerFrames()
        # The end of its last call, by the event loop's clock.
        self._quiet_since = asyncio.get_running_loop().time()
        self._has_called = False
        self._client: asyncio.Transport | None = None
        self._server: asyncio.Transport | None = None
        # Received bytes that were not passed on: from a waiting call on, or an incomplete frame header.
        self._held = bytearray()
        # The counted part, and the end of the scan for frames that need not wait.
        self._counted_bytes = 0
        self._looked = 0
        self._is_waiting = False
        self._server_is_full = False
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def quiet_rank(self) -> tuple[bool, float] | None:
        """Rank the connection for eviction: the lowest is closed first. Connections that never made a call rank below
        all others; among equals the longest quiet one is first. None while a call runs."""
        is_busy = self._frames.open_streams or self._is_waiting
        return None if is_busy else (self._has_called, self._quiet_since)

    def client_made(self, transport: asyncio.Transport) -> None:
        """Take the client's end, which is not read before the other end exists."""
        self._client = transport
        transport.pause_reading()
        transport.set_write_buffer_limits(UNSENT_BYTES)

    def server_made(self, transport: asyncio.Transport) -> None:
        """Take gRPC's end: bytes begin to flow both ways, unless the client has left already."""
        self._server = transport
        transport.set_write_buffer_limits(UNSENT_BYTES)
        if self._client is None:
            transport.abort()
        else:
            self._go_on()

    def from_client(self, data: bytes) -> None:
        """Pass on the bytes that may continue. Some may arrive before gRPC is connected: some versions of asyncio begin
        to read an accepted connection although that was paused."""
        if not self._held and self._server is not None:
            # Most bytes pass on unchanged: an image's bytes are not copied once more.
            at, call_begins = self._frames.next_call(data, 0)
            if at == len(data) and not call_begins:
                self._server.write(data)
                return
            if at:
                self._server.write(data[:at])
            data = data[at:]
        self._held += data
        if self._server is not None:
            (self._pass_ahead if self._is_waiting else self._go_on)()

    def let_in(self) -> None:
        """Pass on the call that waited, and the bytes after it up to the next one."""
        self._is_waiting = False
        self._begin_call()
        self._go_on()

    def _begin_call(self) -> None:
        self._has_called = True
        self._frames.begin_call()

    def _go_on(self) -> None:
        at = 0
        while True:
            at, call_begins = self._frames.next_call(self._held, at)
            if not call_begins:
                break
            if not self._turns.begin(self):
                self._is_waiting = True
                break
            self._begin_call()
        if at and self._server is not None:
            self._server.write(bytes(self._held[:at]))
        del self._held[:at]
        self._looked = max(self._looked - at, 0)
        if self._is_waiting:
            self._pass_ahead()
        else:
            self._read_or_wait()

    def _pass_ahead(self) -> None:
        passed, self._looked = self._frames.overtaking(self._held, self._looked)
        if passed and self._server is not None:
            self._server.write(b"".join(passed))
        self._read_or_wait()

    def from_server(self, data: bytes) -> None:
        if ended := self._answers.ended_streams(data):
            self._frames.open_streams.difference_update(ended)
            self._quiet_since = asyncio.get_running_loop().time()
        if self._client is not None:
            self._client.write(data)

    def server_full(self, full: bool) -> None:
        """Stop reading from the client while gRPC's buffer is full."""
        self._server_is_full = full
        self._read_or_wait()

    def client_full(self, full: bool) -> None:
        """Stop reading from gRPC while the client's buffer is full."""
        if self._server is not None:
            (self._server.pause_reading if full else self._server.resume_reading)()

    def _read_or_wait(self) -> None:
        self._count_held()
        if self._client is not None:
            waits = self._server_is_full or self._server is None or self._holds_enough()
            (self._client.pause_reading if waits else self._client.resume_reading)()

    def _holds_enough(self) -> bool:
        is_much = self._turns.held_bytes > AHEAD_TOTAL_BYTES
        return self._is_waiting and len(self._held) >= (READ_BYTES if is_much else AHEAD_BYTES)

    def _count_held(self) -> None:
        self._turns.held_bytes += len(self._held) - self._counted_bytes
        self._counted_bytes = len(self._held)

    def client_lost(self) -> None:
        """End the calls of a client that left: gRPC sees the end of its connection."""
        self._client, self._held = None, bytearray()
        self._count_held()
        self._turns.leave(self)
        if self._server is not None:
            self._server.abort()
        self._end()

    def server_lost(self) -> None:
        """Close after gRPC's last bytes."""
        self._server = None
        if self._client is not None:
            self._client.close()
            asyncio.get_running_loop().call_later(FLUSH_S, self.abort)
        self._end()

    def abort(self) -> None:
        for transport in (self._client, self._server):
            if transport is not None:
                transport.abort()
        self._end()

    def _end(self) -> None:
        if not self.ended.done() and self._client is None:
            self.ended.set_result(None)


class ClientEnd(asyncio.BufferedProtocol):
    """Read into memory that all connections share, since the bytes are passed on or copied immediately."""

    def __init__(self, connection: Connection, shared: memoryview) -> None:
        self._connection = connection
        self._shared = shared

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.client_made(cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.from_client(bytes(self._shared[:nbytes]))

    def pause_writing(self) -> None:
        self._connection.client_full(True)

    def resume_writing(self) -> None:
        self._connection.client_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.client_lost()


class ServerEnd(asyncio.Protocol):
    """Connect to gRPC."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.server_made(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._connection.from_server(data)

    def pause_writing(self) -> None:
        self._connection.server_full(True)

    def resume_writing(self) -> None:
        self._connection.server_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.server_lost()
