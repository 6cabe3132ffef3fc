"""An event loop's own connection to an index's child: it sends searches and reads their replies itself.

No thread stands between, and what others write to the child over its other connection comes after the searches.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.frames import BrokenWire, Frame, FrameBuffer, send_frame, takes_at_once

_STORE = "vector index"
_READ_BYTES = 1 << 16


class SearchWire:
    """One child's connection for searches. It belongs to the event loop that uses it first; `end` is for any thread.

    `on_reply` is called with the number of each call that was answered.
    """

    def __init__(self, ours: socket.socket, on_reply: Callable[[int], None]) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._on_reply = on_reply
        self._frames = FrameBuffer()
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._ended = False

    def ask(self, frame: Frame) -> "asyncio.Future[Frame] | None":
        """Send a frame and return what its reply will be in; None where that would have to wait, or where another event
        loop has the connection. The future may be cancelled. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._ended:
                raise StoreUnavailable(_STORE, "its process went away")
            if self._loop is None:
                self._loop = loop
                loop.add_reader(self._socket, self._read)
        if self._loop is not loop or not takes_at_once(self._socket):
            return None
        answered: asyncio.Future[Frame] = loop.create_future()
        try:
            send_frame(self._socket, frame)
        except BrokenWire as error:
            self._close()
            raise StoreUnavailable(_STORE, f"its process went away: {error}") from error
        self._waiting[frame.header["id"]] = answered
        return answered

    def end(self) -> None:
        """Close the connection; whoever waits hears that the child went away."""
        with self._lock:
            self._ended = True
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                # An event loop that is closed reads nothing more.
                loop.call_soon_threadsafe(self._close)
                return
        self._socket.close()

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
        """In the event loop's thread."""
        with self._lock:
            self._ended = True
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(StoreUnavailable(_STORE, "its process went away"))
