"""Connect an event loop to an index's child: the loop sends searches and reads their replies itself.

No other thread takes part, and searches come before the writes that others send to the child over its other connection.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.frames import BrokenWire, Frame, FrameBuffer, packed

_STORE = "vector index"
_READ_BYTES = 1 << 16


class SearchWire:
    """Connect to one child for searches. The connection belongs to the first event loop that uses it, until that loop
    is closed; `end` is for any thread.

    `on_reply` receives the number of each answered call.
    """

    def __init__(self, ours: socket.socket, on_reply: Callable[[int], None]) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._on_reply = on_reply
        self._frames = FrameBuffer()
        # Bytes that a full socket did not take yet, and whether the loop sends them once it does.
        self._unsent = bytearray()
        self._sends_later = False
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._ended = False

    def ask(self, frame: Frame) -> "asyncio.Future[Frame]":
        """Send a frame, never blocking, and return the future of its reply, which may be cancelled. Raises
        StoreUnavailable once the child is away, and in a second event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._ended:
                raise StoreUnavailable(_STORE, "its process went away")
            if self._loop is not loop:
                self._join(loop)
        answered: asyncio.Future[Frame] = loop.create_future()
        self._waiting[frame.header["id"]] = answered
        self._unsent += packed(frame)
        if not self._sends_later:
            self._send(loop)
        return answered

    def end(self) -> None:
        """Close the connection; every waiting search raises StoreUnavailable."""
        with self._lock:
            self._ended = True
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                # A closed event loop reads no more replies.
                loop.call_soon_threadsafe(self._close)
                return
        self._socket.close()

    def _join(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise StoreUnavailable(_STORE, "another event loop searches it")
        self._loop, self._waiting, self._sends_later = loop, {}, False
        loop.add_reader(self._socket, self._read)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            sent_count = self._socket.send(self._unsent)
        except BlockingIOError:
            sent_count = 0
        except OSError:
            self._close()
            return
        del self._unsent[:sent_count]
        if self._unsent and not self._sends_later:
            loop.add_writer(self._socket, self._send, loop)
        elif self._sends_later and not self._unsent:
            loop.remove_writer(self._socket)
        self._sends_later = bool(self._unsent)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
            replies = self._frames.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, BrokenWire):
            replies = None
        if replies is None:
            self._close()
            return
        for reply in replies:
            self._on_reply(reply.header["id"])
            answered = self._waiting.pop(reply.header["id"], None)
            if answered is not None and not answered.done():
                answered.set_result(reply)

    def _close(self) -> None:
        """Close the connection, in the event loop's thread; every waiting search raises StoreUnavailable."""
        with self._lock:
            self._ended = True
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(StoreUnavailable(_STORE, "its process went away"))
