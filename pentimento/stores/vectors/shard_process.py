"""Keep the index's child process alive and talk to it."""

import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.frames import BrokenWire, Frame, receive_frame, send_frame
from pentimento.stores.vectors.index import Dimensions
from pentimento.stores.vectors.search_wire import SearchWire

logger = logging.getLogger(__name__)

_STORE = "vector index"
_IDLE_POLL_S = 0.005
_READY_POLL_S = 0.2


@dataclass(frozen=True)
class ShardTiming:
    """Set the times of a child, in seconds. A child without any answer for `hang_s` is killed and started again."""

    first_restart_s: float = 0.1
    max_restart_s: float = 5.0
    hang_s: float = 30.0
    send_s: float = 2.0
    stop_s: float = 5.0


DEFAULT_TIMING = ShardTiming()


def shard_arguments(directory: Path, dimensions: Dimensions) -> tuple[str, ...]:
    """Return the arguments of a child for the shard in that directory."""
    sizes = ("--dimension-count", str(dimensions.text), "--image-dimension-count", str(dimensions.image))
    return ("--directory", str(directory), *sizes)


class ShardProcess:
    """Run a child, started again with growing delays whenever it dies; calls fail immediately while it is away.

    Without `restarts` its first death is the last.

    A separate thread starts the child and reads its replies. It must outlive the child, because the kernel kills the
    child when the thread that started it ends.
    """

    # More unanswered calls mean that the child is stuck; it also keeps the socket's buffer from filling up.
    MAX_OUTSTANDING_COUNT = 64

    def __init__(self, arguments: Sequence[str], timing: ShardTiming = DEFAULT_TIMING, restarts: bool = True) -> None:
        self._arguments = tuple(arguments)
        self._timing = timing
        self._restarts = restarts
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._waiting: dict[int, Future[Frame]] = {}
        # The time of each sent call; abandoned calls included, unlike above.
        self._outstanding: dict[int, float] = {}
        self._wire: socket.socket | None = None
        self._searches: SearchWire | None = None
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="index-shard-supervisor", daemon=True)
        self.pid: int | None = None
        self.start_count = 0

    def start(self) -> None:
        """Start the child, and keep starting it, in the background."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the child serves.

        Raises StoreUnavailable when that takes longer than `timeout_s`, or when it died and is not started again.
        """
        until = time.monotonic() + timeout_s
        while not self._ready.wait(min(_READY_POLL_S, max(0.0, until - time.monotonic()))):
            if not self._thread.is_alive():
                raise StoreUnavailable(_STORE, "its process ended before it served")
            if time.monotonic() >= until:
                raise StoreUnavailable(_STORE, f"its process did not start within {timeout_s:g} s")

    def call(self, header: dict[str, Any], body: bytes = b"", *, timeout_s: float) -> Frame:
        """Send a frame and wait for its reply. Raises StoreUnavailable when there is none, or it reports an error."""
        until = time.monotonic() + timeout_s
        call_id, future = self._register()
        try:
            self._send(Frame(header | {"id": call_id}, body), until)
            reply = future.result(max(0.0, until - time.monotonic()))
        except FutureTimeoutError:
            raise StoreUnavailable(_STORE, f"no answer within {timeout_s * 1000:.0f} ms") from None
        finally:
            with self._lock:
                self._waiting.pop(call_id, None)
        return without_error(reply)

    async def search(self, header: dict[str, Any], body: bytes = b"") -> Frame:
        """Send a frame from the event loop, ahead of all `call` frames, and return its reply. No thread takes part; the
        caller bounds the wait, and may cancel it. Raises StoreUnavailable."""
        with self._lock:
            call_id, searches = self._new_call(), self._searches
        try:
            if searches is None:
                raise StoreUnavailable(_STORE, "its process is not running")
            return without_error(await searches.ask(Frame(header | {"id": call_id}, body)))
        except StoreUnavailable:
            self._note_answer(call_id)
            raise

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until every call was answered, `timeout_s` at most."""
        until = time.monotonic() + timeout_s
        while self._outstanding and time.monotonic() < until:
            time.sleep(_IDLE_POLL_S)

    def close(self) -> None:
        """End the child, which flushes first, and the thread."""
        self._closing.set()
        with self._lock:
            wire = self._wire
        if wire is not None:
            # Shut down rather than closed: the reading thread is still using it.
            _shut_down(wire)
        if self._thread.is_alive():
            self._thread.join()

    def _register(self) -> "tuple[int, Future[Frame]]":
        future: Future[Frame] = Future()
        with self._lock:
            call_id = self._new_call()
            self._waiting[call_id] = future
        return call_id, future

    def _new_call(self) -> int:
        """Register a call, under the lock, and return its number."""
        if not self._ready.is_set():
            raise StoreUnavailable(_STORE, "its process is not running")
        if len(self._outstanding) >= self.MAX_OUTSTANDING_COUNT:
            raise StoreUnavailable(_STORE, f"{len(self._outstanding)} calls are waiting already")
        call_id = next(self._ids)
        self._outstanding[call_id] = time.monotonic()
        return call_id

    def _note_answer(self, call_id: int) -> None:
        with self._lock:
            self._outstanding.pop(call_id, None)

    def _send(self, frame: Frame, until: float) -> None:
        wire = self._wire
        if wire is None or not self._send_lock.acquire(timeout=max(0.0, until - time.monotonic())):
            with self._lock:
                self._outstanding.pop(frame.header["id"], None)
            raise StoreUnavailable(_STORE, "its process is not running" if wire is None else "it is busy")
        try:
            send_frame(wire, frame)
        except BrokenWire as error:
            _shut_down(wire)
            raise StoreUnavailable(_STORE, f"its process went away: {error}") from error
        finally:
            self._send_lock.release()

    def _supervise(self) -> None:
        delay = self._timing.first_restart_s
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                self._run_child()
            except OSError as error:
                # Memory, processes or descriptors are short: treat it as an immediate death.
                logger.error("the index process cannot be started: %s", error)
            if not self._restarts:
                return
            if time.monotonic() - started > self._timing.max_restart_s:
                delay = self._timing.first_restart_s
            self._closing.wait(delay)
            delay = min(2 * delay, self._timing.max_restart_s)

    def _run_child(self) -> None:
        """Start the child and read its replies until it ends. Raises OSError if it cannot be started."""
        child, ours, our_searches = self._started_child()
        with ours:
            ours.settimeout(self._timing.send_s)
            with self._lock:
                self._wire, self.pid = ours, child.pid
                self._searches = SearchWire(our_searches, self._note_answer)
            self.start_count += 1
            self._read_replies(ours, child)
            self._forget_calls()
            self._reap(child)

    def _started_child(self) -> "tuple[subprocess.Popen[bytes], socket.socket, socket.socket]":
        """Return a child, and our ends of its connections: for calls, and for searches from the event loop."""
        with ExitStack() as started:
            ours, theirs = map(started.enter_context, socket.socketpair())
            our_searches, their_searches = map(started.enter_context, socket.socketpair())
            child = self._spawn(theirs, their_searches)
            started.pop_all()
        theirs.close()
        their_searches.close()
        return child, ours, our_searches

    def _spawn(self, theirs: socket.socket, searches: socket.socket) -> "subprocess.Popen[bytes]":
        wires = (theirs.fileno(), searches.fileno())
        own = ("--wire-fd", str(wires[0]), "--search-fd", str(wires[1]), "--parent", str(os.getpid()))
        command = (sys.executable, "-m", "pentimento.stores.vectors.index_shard", *self._arguments, *own)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=wires)

    def _read_replies(self, wire: socket.socket, child: "subprocess.Popen[bytes]") -> None:
        while not self._closing.is_set():
            try:
                self._deliver(receive_frame(wire))
            except TimeoutError:
                if self._hangs():
                    logger.error("the index process has not answered for %g s; killed", self._timing.hang_s)
                    child.kill()
            except BrokenWire as error:
                if not self._closing.is_set():
                    logger.error("the index process is gone (%s); starting it again", error)
                return

    def _deliver(self, reply: Frame) -> None:
        call_id = reply.header["id"]
        if call_id == 0:
            self._ready.set()
            return
        with self._lock:
            self._outstanding.pop(call_id, None)
            future = self._waiting.pop(call_id, None)
        if future is not None:
            future.set_result(reply)

    def _hangs(self) -> bool:
        with self._lock:
            oldest = next(iter(self._outstanding.values()), None)
        return oldest is not None and time.monotonic() - oldest > self._timing.hang_s

    def _forget_calls(self) -> None:
        with self._lock:
            self._ready.clear()
            self._wire = self.pid = None
            lost, self._waiting = self._waiting, {}
            searches, self._searches = self._searches, None
            self._outstanding.clear()
        if searches is not None:
            searches.end()
        for future in lost.values():
            future.set_exception(StoreUnavailable(_STORE, "its process went away"))

    def _reap(self, child: "subprocess.Popen[bytes]") -> None:
        try:
            child.wait(self._timing.stop_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def without_error(reply: Frame) -> Frame:
    """Return the reply. Raises StoreUnavailable when it reports an error."""
    if "error" in reply.header:
        raise StoreUnavailable(_STORE, reply.header["error"])
    return reply


def _shut_down(wire: socket.socket) -> None:
    try:
        wire.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended already.
        return
