"""Connect two processes of one host by a line: a pair of FIFOs in the shared-memory directory, for messages of a few
hundred bytes that describe the contents of slots.

A message over gRPC costs each end several thread wake-ups and half a millisecond of processor time; one over a line is
a write and a read. The answering end of a stream makes a line under two random names, locked as regions are; the asking
end opens it and removes the names. A line serves one stream, and does not report that an end has exited: the stream
does.
"""

import asyncio
import fcntl
import os
import secrets
import select
import stat
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.regions import RegionDirectory, is_region_id

_LENGTH = struct.Struct("<I")
# The largest message that a FIFO writes atomically.
MAX_MESSAGE_BYTES = select.PIPE_BUF - _LENGTH.size
_READ_BYTES = 64 * 1024
_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class LineListener(Protocol):
    """Watch the descriptors of lines on a separate thread. Its methods may be called on any thread."""

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """Run a callback whenever the descriptor is readable; it reads all available data."""

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor, before it is closed; a call of its callback may still be running. Idempotent."""


class LoopListener:
    """Implement `LineListener` on the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """Watch a descriptor. Call it only on the event loop."""
        self._loop.add_reader(descriptor, hear)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor. Call it only on the event loop."""
        self._loop.remove_reader(descriptor)


@dataclass
class _Fifo:
    descriptor: int
    path: Path


class HostLine:
    """Hold one end of a line. Call `send` on any thread; `read` on one thread at a time."""

    def __init__(self, inward: _Fifo, outward: _Fifo) -> None:
        self._inward = inward
        self._outward = outward
        self._closed = False
        # Once closed, a descriptor's number may belong to another file.
        self._held = threading.Lock()
        self._rest = b""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a message has arrived."""
        return self._inward.descriptor

    def send(self, message: bytes) -> bool:
        """Write a message; return False if the line is closed or full. Raises InvalidArgument for more than
        MAX_MESSAGE_BYTES."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidArgument.of("line", f"must take at most {MAX_MESSAGE_BYTES} bytes, got {len(message)}")
        with self._held:
            if self._closed:
                return False
            try:
                os.write(self._outward.descriptor, _LENGTH.pack(len(message)) + message)
            except BlockingIOError:
                return False
        return True

    def read(self) -> list[bytes]:
        """Return the messages that have arrived, in order. Raises InvalidArgument for data that `send` cannot have
        written."""
        with self._held:
            if self._closed:
                return []
            try:
                self._rest += os.read(self._inward.descriptor, _READ_BYTES)
            except BlockingIOError:
                return []
        messages, begin, have = [], 0, len(self._rest)
        while have - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, begin)
            if length > MAX_MESSAGE_BYTES:
                raise InvalidArgument.of("line", f"must carry messages of {MAX_MESSAGE_BYTES} bytes at most")
            end = begin + _LENGTH.size + length
            if end > have:
                break
            messages.append(self._rest[begin + _LENGTH.size : end])
            begin = end
        self._rest = self._rest[begin:]
        return messages

    def close(self) -> None:
        """Close the line and remove its names if they still exist. Idempotent."""
        with self._held:
            if self._closed:
                return
            self._closed = True
            for fifo in (self._inward, self._outward):
                os.close(fifo.descriptor)
                fifo.path.unlink(missing_ok=True)


def make_line(directory: RegionDirectory) -> tuple[HostLine, pb.Line]:
    """Return a new line's answering end, and the message that the other end opens it with. Raises ResourceExhausted
    (NO_LINE) if the directory takes no FIFO."""
    made: list[_Fifo] = []
    try:
        for _ in range(2):
            path = directory.path / secrets.token_hex(16)
            os.mkfifo(path, 0o600)
            made.append(_Fifo(os.open(path, _OPEN), path))
            # Before the lock is held, a sweep may remove the name: the other end then cannot open the line.
            fcntl.flock(made[-1].descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        for fifo in made:
            os.close(fifo.descriptor)
            fifo.path.unlink(missing_ok=True)
        raise ResourceExhausted("NO_LINE", f"no line could be made ({type(error).__name__})") from None
    asks, answers = made
    return HostLine(asks, answers), pb.Line(asks_id=asks.path.name, answers_id=answers.path.name)


def open_line(directory: RegionDirectory, told: pb.Line) -> HostLine:
    """Return the asking end of a line that another process made, and remove its names. Raises FailedPrecondition
    (NO_SUCH_LINE) if a name does not exist, InvalidArgument for a malformed name."""
    opened: list[_Fifo] = []
    try:
        for name in (told.answers_id, told.asks_id):
            if not is_region_id(name):
                raise InvalidArgument.of("line", "must be named by 32 hexadecimal digits")
            opened.append(_opened(directory.path / name))
    except OSError:
        _let_go(opened)
        raise FailedPrecondition("NO_SUCH_LINE", "no line of that name is shared with this process") from None
    except InvalidArgument:
        _let_go(opened)
        raise
    for fifo in opened:
        fifo.path.unlink(missing_ok=True)
    return HostLine(*opened)


def _opened(path: Path) -> _Fifo:
    descriptor = os.open(path, _OPEN)
    found = os.fstat(descriptor)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise FileNotFoundError(path.name)
    return _Fifo(descriptor, path)


def _let_go(fifos: list[_Fifo]) -> None:
    for fifo in fifos:
        with suppress(OSError):
            os.close(fifo.descriptor)
