"""Where calls begin and end among the bytes of an HTTP/2 connection (RFC 9113, sections 3.4 and 4.1)."""

PREFACE_BYTES = 24
FRAME_HEADER_BYTES = 9
DATA, HEADERS, RST_STREAM, PING, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x6, 0x8
STREAM_BITS = 0x7FFFFFFF
# A flag of DATA and HEADERS frames.
END_STREAM = 0x1


class CallFrames:
    """Follows the frames of one connection. Nothing is judged: what is no HTTP/2 goes on as it came, to gRPC."""

    __slots__ = ("_last_stream", "_next_stream", "_unseen_bytes", "open_streams")

    def __init__(self) -> None:
        # Calls that have begun, less those that the client reset: whoever knows of another end takes it out.
        self.open_streams: set[int] = set()
        # Of the frame that the bytes have got to, or of the preface.
        self._unseen_bytes = PREFACE_BYTES
        self._last_stream = 0
        self._next_stream = 0

    def next_call(self, data: bytes | bytearray, start: int) -> tuple[int, bool]:
        """Return how far `data` goes on from `start` without a new call, and whether one begins there.

        A frame header that has not come whole is not gone past: it is to be offered again, with what follows it. A call
        is offered again until `begin_call`. A stream's later HEADERS frames are its trailers.
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
        """Return the frames from `start` on that need not wait with the call that was told last, and take them out of
        `data`; then how far it was looked through. `start` is where a frame begins; one that has not come whole is
        left.

        These are pings, and what belongs to calls that have begun or to the connection's window. Header blocks keep
        their order: each is read by what came before it (RFC 7541, section 2.2).
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
        """Let the call that was told last go on."""
        self._last_stream = self._next_stream
        self.open_streams.add(self._last_stream)


class AnswerFrames:
    """Follows the frames that a server sends on one connection, to tell which calls they end."""

    __slots__ = ("_piece", "_unseen_bytes")

    def __init__(self) -> None:
        # Of the frame that the bytes have got to, behind its header.
        self._unseen_bytes = 0
        # Of a frame header that has not come whole.
        self._piece = b""

    def ended_streams(self, data: bytes) -> list[int]:
        """Return the streams that end among these bytes, which follow those of the last call."""
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
