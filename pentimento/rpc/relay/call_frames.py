"""Find the beginnings and ends of calls in the bytes of an HTTP/2 connection (RFC 9113, sections 3.4 and 4.1)."""

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
