"""Where calls begin among the bytes that a client sends on an HTTP/2 connection (RFC 9113, sections 3.4 and 4.1)."""

PREFACE_BYTES = 24
FRAME_HEADER_BYTES = 9
HEADERS = 0x1
STREAM_BITS = 0x7FFFFFFF


class CallFrames:
    """Follows the frames of one connection. Nothing is judged: what is no HTTP/2 goes on as it came, to gRPC."""

    __slots__ = ("_last_stream", "_next_stream", "_unseen_bytes")

    def __init__(self) -> None:
        # Of the frame that the bytes have got to, or of the preface.
        self._unseen_bytes = PREFACE_BYTES
        self._last_stream = 0
        self._next_stream = 0

    def next_call(self, data: bytes, start: int) -> tuple[int, bool]:
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
            self._unseen_bytes = FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 3])

    def begin_call(self) -> None:
        """Let the call that was told last go on."""
        self._last_stream = self._next_stream
